// A group of 16 rows of weights times M rows of x, for weights that stand column by column: an item takes LANES rows
// of some columns. M is 1, 4 or 8; where fewer rows of x are left, the last one stands for the others.

FN void JOIN(accumulate_, M)(
    const GLOBAL uchar *group, const GLOBAL float *x, uint k, uint left, float acc[M][LANES]
) {
    const uint parts = 16 / LANES, stride = ITEMS / parts;
    const GLOBAL uchar *from = group + ITEM % parts * 16;
    const GLOBAL float *rows[M];
    #pragma unroll
    for (uint m = 0; m < M; m++) rows[m] = x + (size_t)min(m, left - 1) * k;
    // Several loads at once are what hides the memory's latency.
    uint column = ITEM / parts;
    for (; column + 3 * stride < k; column += 4 * stride) {
        uint4 bytes[4];
        #pragma unroll
        for (uint i = 0; i < 4; i++) bytes[i] = LOAD4(from + (column + i * stride) * parts * 16);
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            float values[LANES];
            lanes(bytes[i], values);
            #pragma unroll
            for (uint m = 0; m < M; m++) {
                float factor = rows[m][column + i * stride];
                #pragma unroll
                for (uint r = 0; r < LANES; r++) acc[m][r] = fma(values[r], factor, acc[m][r]);
            }
        }
    }
    for (; column < k; column += stride) {
        float values[LANES];
        lanes(LOAD4(from + column * parts * 16), values);
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            float factor = rows[m][column];
            #pragma unroll
            for (uint r = 0; r < LANES; r++) acc[m][r] = fma(values[r], factor, acc[m][r]);
        }
    }
}
