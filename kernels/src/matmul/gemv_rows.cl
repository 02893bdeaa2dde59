// M rows of y: sums of the items are brought together in local memory, PASS rows at a time.

#ifndef PASS
// Items that share a column, or a block: each has LANES of the 16 rows of weights.
#define PARTS (16 / LANES)
#define PASS (8 / LANES)
// Local memory from the partial sums of one row of weights to those of the next; two more than there are, for the banks.
#define STRIDE (ITEMS / PARTS + 2)
#endif

FN void JOIN(rows_, M)(
    LOCAL float *partial, const GLOBAL uchar *group, const GLOBAL INPUT *x, GLOBAL float *y,
    uint left, uint writable, uint n, uint k, uint accumulate
) {
    float acc[M][LANES];
    #pragma unroll
    for (uint m = 0; m < M; m++) {
        #pragma unroll
        for (uint r = 0; r < LANES; r++) acc[m][r] = 0.0f;
    }
    JOIN(accumulate_, M)(group, x, k, left, acc);
    const uint pass = M < PASS ? M : PASS;
    LOCAL float *slices = partial + PASS * 16 * STRIDE;
    #pragma unroll
    for (uint first = 0; first < M; first += pass) {
        #pragma unroll
        for (uint m = 0; m < pass; m++) {
            #pragma unroll
            for (uint r = 0; r < LANES; r++) {
                partial[(m * 16 + ITEM % PARTS * LANES + r) * STRIDE + ITEM / PARTS] = acc[first + m][r];
            }
        }
        BARRIER();
        // 16 items bring a sum down to 16 numbers, one adds these.
        for (uint sum = ITEM / 16; sum < pass * 16; sum += ITEMS / 16) {
            float slice = 0.0f;
            for (uint i = ITEM % 16; i < ITEMS / PARTS; i += 16) slice += partial[sum * STRIDE + i];
            slices[sum * 17 + ITEM % 16] = slice;
        }
        BARRIER();
        for (uint sum = ITEM; sum < pass * 16; sum += ITEMS) {
            float value = 0.0f;
            for (uint i = 0; i < 16; i++) value += slices[sum * 17 + i];
            uint row = first + sum / 16, column = GROUP(0) * 16 + sum % 16;
            if (row < writable && column < n) {
                GLOBAL float *to = y + (size_t)row * n + column;
                *to = accumulate ? *to + value : value;
            }
        }
    }
}
