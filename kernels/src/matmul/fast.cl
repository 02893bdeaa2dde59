FN void accumulate_rows(const GLOBAL uchar *group, const GLOBAL uchar *x, uint k, uint left, float acc[M][LANES]) {
    const uint part = ITEM % 4, pair = ITEM / 4 % 2 * 2, blocks = k / 32, stride = ITEMS / 8;
    for (uint first = ITEM / 8; first < blocks; first += BATCH * stride) {
        // Quads `pair`, `pair` + 1 and those 16 columns on.
        uint words[BATCH][4][4];
        Scales scales[BATCH];
        #pragma unroll
        for (uint b = 0; b < BATCH; b++) {
            uint block = min(first + b * stride, blocks - 1);
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                quad_words(group, blocks, block, pair + i % 2 + i / 2 * 4, part, words[b][i]);
            }
            block_scales(group, blocks, block, part, &scales[b]);
        }
        #pragma unroll
        for (uint b = 0; b < BATCH; b++) {
            bool inside = first + b * stride < blocks;
            uint block = min(first + b * stride, blocks - 1);
            #pragma unroll
            for (uint m = 0; m < M; m++) {
                const GLOBAL uchar *row = x + (size_t)min(m, left - 1) * row_bytes(k);
                uint2 low = LOAD2(row + block * 32 + pair * 4), high = LOAD2(row + block * 32 + 16 + pair * 4);
                float scale = inside ? LOADF1(row + scales_offset(k) + block * 4) : 0.0f;
                // The sums are of all quads: one of the two items takes them.
                uint2 sums = UINT2(0, 0);
                if ((OFFSET || MINIMA) && pair == 0) sums = sums_of(row, k, block);
                #pragma unroll
                for (uint r = 0; r < 4; r++) {
                    acc[m][r] = add_block(
                        dot4(words[b][0][r], low.x, dot4(words[b][1][r], low.y, 0)),
                        dot4(words[b][2][r], high.x, dot4(words[b][3][r], high.y, 0)), (int)sums.x, (int)sums.y,
                        scale, scales[b].first[r], scales[b].last[r], scales[b].minimum[r],
                        UNEQUAL && MINIMA ? scales[b].last_minimum[r] : 0.0f, acc[m][r]
                    );
                }
            }
        }
    }
}
