// Quantised weights as rows of f16: a group takes 16 rows of 512 columns, an item four rows of eight columns of each
// 16 blocks.

KERNEL(ITEMS) widen(
    const GLOBAL uchar *RESTRICT weights, GLOBAL uchar *RESTRICT out, uint n, uint k
) {
    BEGIN();
    uint part = ITEM % 4, octet = ITEM / 4 % 4, block = GROUP(1) * (ITEMS / 16) + ITEM / 16, blocks = k / 32;
    uint pitch = half_row_bytes(k), column = block * 32 + octet * 8;
    if (column * 2 >= pitch) return;
    float low[4][4], high[4][4];
    if (block < blocks) {
        const GLOBAL uchar *group = weights + (size_t)GROUP(0) * group_bytes(k);
        uint words[4];
        Scales scales;
        block_scales(group, blocks, block, part, &scales);
        quad_words(group, blocks, block, octet * 2, part, words);
        scaled_values(words, &scales, octet * 2, low);
        quad_words(group, blocks, block, octet * 2 + 1, part, words);
        scaled_values(words, &scales, octet * 2 + 1, high);
    }
    GLOBAL uchar *to = out + ((size_t)GROUP(0) * 16 + part * 4) * pitch + column * 2;
    #pragma unroll
    for (uint r = 0; r < 4; r++) {
        uint4 bytes = UINT4(0, 0, 0, 0);
        if (block < blocks) {
            bytes = UINT4(
                pack_halves(in_half_range(low[r][0]), in_half_range(low[r][1])),
                pack_halves(in_half_range(low[r][2]), in_half_range(low[r][3])),
                pack_halves(in_half_range(high[r][0]), in_half_range(high[r][1])),
                pack_halves(in_half_range(high[r][2]), in_half_range(high[r][3]))
            );
        }
        *(GLOBAL uint4 *)(to + (size_t)r * pitch) = bytes;
    }
}
