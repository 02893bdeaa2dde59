// A group of 16 rows of quantised weights times M rows of f32, blocks of 32 columns at a time: an item takes four rows
// of some blocks. M is 1, 4 or 8; where fewer rows of x are left, the last one stands for the others.

FN void JOIN(accumulate_, M)(
    const GLOBAL uchar *group, const GLOBAL float *x, uint k, uint left, float acc[M][LANES]
) {
    const uint part = ITEM % 4, blocks = k / 32;
    const GLOBAL float *rows[M];
    #pragma unroll
    for (uint m = 0; m < M; m++) rows[m] = x + (size_t)min(m, left - 1) * k;
    for (uint block = ITEM / 4; block < blocks; block += ITEMS / 4) {
        // Sums over quanta, and over x, of the first and the last 16 columns.
        float first[M][4], last[M][4], first_x[M], last_x[M];
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            first_x[m] = last_x[m] = 0.0f;
            #pragma unroll
            for (uint r = 0; r < 4; r++) first[m][r] = last[m][r] = 0.0f;
        }
        #pragma unroll
        for (uint j = 0; j < 4; j++) {
            // Neighbours begin with different quads, so that their loads of x fall into different banks.
            const uint quad = (j + block) & 3;
            uint low[4], high[4];
            quad_words(group, blocks, block, quad, part, low);
            quad_words(group, blocks, block, quad + 4, part, high);
            #pragma unroll
            for (uint m = 0; m < M; m++) {
                const GLOBAL float *at = rows[m] + block * 32 + quad * 4;
                float4 a = LOADF4(at), b = LOADF4(at + 16);
                first_x[m] += (a.x + a.y) + (a.z + a.w);
                last_x[m] += (b.x + b.y) + (b.z + b.w);
                #pragma unroll
                for (uint r = 0; r < 4; r++) {
                    first[m][r] = fma((float)BYTE(low[r], 0), a.x, first[m][r]);
                    first[m][r] = fma((float)BYTE(low[r], 1), a.y, first[m][r]);
                    first[m][r] = fma((float)BYTE(low[r], 2), a.z, first[m][r]);
                    first[m][r] = fma((float)BYTE(low[r], 3), a.w, first[m][r]);
                    last[m][r] = fma((float)BYTE(high[r], 0), b.x, last[m][r]);
                    last[m][r] = fma((float)BYTE(high[r], 1), b.y, last[m][r]);
                    last[m][r] = fma((float)BYTE(high[r], 2), b.z, last[m][r]);
                    last[m][r] = fma((float)BYTE(high[r], 3), b.w, last[m][r]);
                }
            }
        }
        Scales scales;
        block_scales(group, blocks, block, part, &scales);
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            #pragma unroll
            for (uint r = 0; r < 4; r++) {
                float sum = acc[m][r];
                sum = fma(scales.first[r], fma((float)-OFFSET, first_x[m], first[m][r]), sum);
                sum = fma(scales.last[r], fma((float)-OFFSET, last_x[m], last[m][r]), sum);
                if (MINIMA) sum = fma(-scales.minimum[r], first_x[m] + last_x[m], sum);
                acc[m][r] = sum;
            }
        }
    }
}
