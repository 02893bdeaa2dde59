// A group of 16 rows of weights times M rows of x, for weights that stand column by column: an item takes LANES rows of
// some columns. Where fewer rows of x are left, the last one stands for the others.

// Columns whose loads are under way together: what hides the memory's latency.
#define BATCH (M == 1 ? 8 : 4)

FN void accumulate_rows(const GLOBAL uchar *group, const GLOBAL float *x, uint k, uint left, float acc[M][LANES]) {
    const uint parts = 16 / LANES, stride = ITEMS / parts;
    const GLOBAL uchar *from = group + ITEM % parts * 16;
    for (uint first = ITEM / parts; first < k; first += BATCH * stride) {
        uint4 bytes[BATCH];
        #pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            uint column = first + i * stride;
            bytes[i] = column < k ? LOAD4(from + column * parts * 16) : UINT4(0, 0, 0, 0);
        }
        #pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            uint column = first + i * stride;
            float values[LANES];
            lanes(bytes[i], values);
            #pragma unroll
            for (uint m = 0; m < M; m++) {
                float factor = column < k ? x[(size_t)min(m, left - 1) * k + column] : 0.0f;
                #pragma unroll
                for (uint r = 0; r < LANES; r++) acc[m][r] = fma(values[r], factor, acc[m][r]);
            }
        }
    }
}
