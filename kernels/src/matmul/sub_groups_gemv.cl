// Products of one row of x with quantised weights, in sub-groups: a group takes 16 rows of weights, and its
// items share the blocks of 32 columns. Each sub-group then adds up the sums of one row of weights.

// Items that share a block: each has LANES of the 16 rows of weights.
#define PARTS (16 / LANES)
// Local memory from the partial sums of one row of weights to those of the next; two more than there are, for
// the banks.
#define STRIDE (ITEMS / PARTS + 2)

KERNEL(ITEMS) matmul_gemv(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    // Rows of x take turns, so that none waits for the readers of the sums before.
    SHARED float partials[2 * 16 * STRIDE];
    const GLOBAL uchar *group = weights + (size_t)GROUP(0) * group_bytes(k);
    uint used = count(params, word, rows), column = GROUP(0) * 16 + SUB_GROUP;
    // With room for one row only, nothing waits for the count: it matters when the row is written.
    for (uint row = 0; row < (rows == 1 ? 1 : used); row++) {
        float acc[M][LANES];
        #pragma unroll
        for (uint r = 0; r < LANES; r++) acc[0][r] = 0.0f;
        accumulate_rows(group, x + (size_t)row * row_bytes(k), k, 1, acc);
        LOCAL float *partial = partials + row % 2 * 16 * STRIDE;
        #pragma unroll
        for (uint r = 0; r < LANES; r++) {
            partial[(ITEM % PARTS * LANES + r) * STRIDE + ITEM / PARTS] = acc[0][r];
        }
        BARRIER();
        float value = 0.0f;
        #pragma unroll
        for (uint s = 0; s < ITEMS / PARTS; s += WIDTH) value += partial[SUB_GROUP * STRIDE + s + LANE];
        value = sub_group_reduce_add(value);
        if (LANE == 0 && row < used && column < n) {
            GLOBAL float *to = y + (size_t)row * stride + column;
            *to = accumulate ? *to + value : value;
        }
    }
}
