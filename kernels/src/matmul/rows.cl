// Products for few rows of x with weights that lie row by row: 32 items take a row of weights, 16 bytes each at a time,
// and M rows of x. Where fewer rows of x are left, the last one stands for the others. A group takes all rows of x, or M of them
// if NARROW is 1.

// Items that share a row of weights; their sums are brought together in local memory.
#define SHARING 32
// Loads of weights that are under way together: what hides the memory's latency.
#define BATCH (M == 1 ? 4 : 2)

// The sum over the item's columns of its row of weights, for M rows of x.
FN void accumulate_row(const GLOBAL uchar *row, const GLOBAL float *x, uint k, uint left, float acc[M]) {
    for (uint first = ITEM % SHARING * LANES; first < k; first += BATCH * SHARING * LANES) {
        uint4 bytes[BATCH];
        #pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            uint column = first + i * SHARING * LANES;
            bytes[i] = column < k ? LOAD4(row + column * VALUE_BYTES) : UINT4(0, 0, 0, 0);
        }
        #pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            uint column = first + i * SHARING * LANES;
            if (column >= k) continue;
            float values[LANES];
            lanes(bytes[i], values);
            #pragma unroll
            for (uint m = 0; m < M; m++) {
                const GLOBAL float *at = x + (size_t)min(m, left - 1) * k + column;
                #pragma unroll
                for (uint v = 0; v < LANES; v += 4) {
                    float4 factors = LOADF4(at + v);
                    acc[m] = fma(values[v], factors.x, acc[m]);
                    acc[m] = fma(values[v + 1], factors.y, acc[m]);
                    acc[m] = fma(values[v + 2], factors.z, acc[m]);
                    acc[m] = fma(values[v + 3], factors.w, acc[m]);
                }
            }
        }
    }
}

KERNEL(ITEMS) matmul_rows(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED float partial[M * ITEMS];
    const uint in_group = ITEMS / SHARING, first_column = GROUP(0) * in_group;
    // Beyond the last row of weights an item computes that row, and does not write.
    const GLOBAL uchar *row = weights + (size_t)min(first_column + ITEM / SHARING, n - 1) * pitch_bytes(k);
    uint used = count(params, word, rows);
    for (uint start = NARROW ? GROUP(1) * M : 0; start < used; start += NARROW ? rows : M) {
        float acc[M];
        #pragma unroll
        for (uint m = 0; m < M; m++) acc[m] = 0.0f;
        accumulate_row(row, x + (size_t)start * k, k, used - start, acc);
        BARRIER(); // the sums of the turn before have been read
        #pragma unroll
        for (uint m = 0; m < M; m++) partial[m * ITEMS + ITEM] = acc[m];
        BARRIER();
        uint to_row = start + ITEM / in_group, column = first_column + ITEM % in_group;
        if (ITEM < M * in_group && to_row < used && column < n) {
            float value = 0.0f;
            for (uint s = 0; s < SHARING; s++) {
                value += partial[ITEM / in_group * ITEMS + ITEM % in_group * SHARING + s];
            }
            GLOBAL float *to = y + (size_t)to_row * stride + column;
            *to = accumulate ? *to + value : value;
        }
    }
}
