// Products for few rows of x: a group takes 16 rows of weights and reads them once for M rows of x. Its items share the
// columns; their sums are brought together in local memory, PASS rows of x at a time.

// Items that share a column, or a block: each has LANES of the 16 rows of weights.
#define PARTS (16 / LANES)
#define PASS (M * LANES < 8 ? M : 8 / LANES)
// Local memory from the partial sums of one row of weights to those of the next; two more than there are, for the banks.
#define STRIDE (ITEMS / PARTS + 2)

KERNEL(ITEMS) matmul_gemv(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL INPUT *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED float partial[PASS * 16 * STRIDE];
    SHARED float slices[PASS * 16 * 17];
    const GLOBAL uchar *group = weights + (size_t)GROUP(0) * group_bytes(k);
    uint used = count(params, word, rows);
    // With room for one row only, nothing waits for the count: it matters when the row is written.
    for (uint start = 0; start < (rows == 1 ? 1 : used); start += M) {
        float acc[M][LANES];
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            #pragma unroll
            for (uint r = 0; r < LANES; r++) acc[m][r] = 0.0f;
        }
        accumulate_rows(group, x + (size_t)start * ROW_LENGTH(k), k, rows == 1 ? 1 : used - start, acc);
        #pragma unroll
        for (uint first = 0; first < M; first += PASS) {
            #pragma unroll
            for (uint m = 0; m < PASS; m++) {
                #pragma unroll
                for (uint r = 0; r < LANES; r++) {
                    partial[(m * 16 + ITEM % PARTS * LANES + r) * STRIDE + ITEM / PARTS] = acc[first + m][r];
                }
            }
            BARRIER();
            // 16 items bring a sum down to 16 numbers, one adds these.
            for (uint turn = 0; turn < PASS * 16; turn += ITEMS / 16) {
                uint sum = turn + ITEM / 16;
                float slice = 0.0f;
                if (sum < PASS * 16) {
                    for (uint s = ITEM % 16; s < ITEMS / PARTS; s += 16) slice += partial[sum * STRIDE + s];
                    slices[sum * 17 + ITEM % 16] = slice;
                }
            }
            BARRIER();
            uint row = start + first + ITEM / 16, column = GROUP(0) * 16 + ITEM % 16;
            if (ITEM < PASS * 16 && row < used && column < n) {
                float value = 0.0f;
                for (uint s = 0; s < 16; s++) value += slices[ITEM * 17 + s];
                GLOBAL float *to = y + (size_t)row * stride + column;
                *to = accumulate ? *to + value : value;
            }
        }
    }
}
