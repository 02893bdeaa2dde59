// A group of 16 rows of quantised weights times M rows of f32, blocks of 32 columns at a time: an item takes four rows
// and half the quads of some blocks. Where fewer rows of x are left, the last one stands for the others.

// A quad's product with four values of x.
FN float dot_quad(uint word, float4 x, float sum) {
    sum = fma((float)BYTE(word, 0), x.x, sum);
    sum = fma((float)BYTE(word, 1), x.y, sum);
    sum = fma((float)BYTE(word, 2), x.z, sum);
    return fma((float)BYTE(word, 3), x.w, sum);
}

FN void accumulate_rows(const GLOBAL uchar *group, const GLOBAL float *x, uint k, uint left, float acc[M][LANES]) {
    const uint part = ITEM % 4, pair = ITEM / 4 % 2 * 2, blocks = k / 32;
    for (uint block = ITEM / 8; block < blocks; block += ITEMS / 8) {
        // Quads `pair`, `pair` + 1 and those 16 columns on.
        uint words[4][4];
        Scales scales;
        #pragma unroll
        for (uint i = 0; i < 4; i++) quad_words(group, blocks, block, pair + i % 2 + i / 2 * 4, part, words[i]);
        block_scales(group, blocks, block, part, &scales);
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            const GLOBAL float *at = x + (size_t)min(m, left - 1) * k + block * 32 + pair * 4;
            float4 a = LOADF4(at), b = LOADF4(at + 4), c = LOADF4(at + 16), d = LOADF4(at + 20);
            float first_sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
            float last_sum = ((c.x + c.y) + (c.z + c.w)) + ((d.x + d.y) + (d.z + d.w));
            #pragma unroll
            for (uint r = 0; r < 4; r++) {
                float first = dot_quad(words[1][r], b, dot_quad(words[0][r], a, (float)-OFFSET * first_sum));
                float last = dot_quad(words[3][r], d, dot_quad(words[2][r], c, (float)-OFFSET * last_sum));
                acc[m][r] = fma(scales.last[r], last, fma(scales.first[r], first, acc[m][r]));
                if (MINIMA) {
                    acc[m][r] = fma(-scales.minimum[r], UNEQUAL ? first_sum : first_sum + last_sum, acc[m][r]);
                    if (UNEQUAL) acc[m][r] = fma(-scales.last_minimum[r], last_sum, acc[m][r]);
                }
            }
        }
    }
}
