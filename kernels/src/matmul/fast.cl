// A group of 16 rows of quantised weights times M rows of int8 activations, blocks of 32 columns at a time: an item
// takes four rows of some blocks. M is 1, 4 or 8; where fewer rows of x are left, the last one stands for the others.

FN void JOIN(accumulate_, M)(
    const GLOBAL uchar *group, const GLOBAL uchar *x, uint k, uint left, float acc[M][LANES]
) {
    const uint part = ITEM % 4, blocks = k / 32;
    for (uint block = ITEM / 4; block < blocks; block += ITEMS / 4) {
        uint words[8][4];
        Scales scales;
        #pragma unroll
        for (uint quad = 0; quad < 8; quad++) quad_words(group, blocks, block, quad, part, words[quad]);
        block_scales(group, blocks, block, part, &scales);
        #pragma unroll
        for (uint m = 0; m < M; m++) {
            const GLOBAL uchar *row = x + (size_t)min(m, left - 1) * row_bytes(k);
            uint4 a = LOAD4(row + block * 32), b = LOAD4(row + block * 32 + 16);
            float scale = *(const GLOBAL float *)(row + scales_offset(k) + block * 4);
            uint2 sums = LOAD2(row + sums_offset(k) + block * 8);
            #pragma unroll
            for (uint r = 0; r < 4; r++) {
                acc[m][r] = add_block(
                    dot4(words[0][r], a.x, dot4(words[1][r], a.y, dot4(words[2][r], a.z, dot4(words[3][r], a.w, 0)))),
                    dot4(words[4][r], b.x, dot4(words[5][r], b.y, dot4(words[6][r], b.z, dot4(words[7][r], b.w, 0)))),
                    (int)sums.x, (int)sums.y, scale, scales.first[r], scales.last[r], scales.minimum[r], acc[m][r]
                );
            }
        }
    }
}
