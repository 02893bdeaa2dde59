// Q8_0: quanta plus 128, then f16 scales.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 32 * 544 + 63) & ~63u; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    words(LOAD4(group + block * 512 + quad * 64 + part * 16), out);
    for (uint r = 0; r < 4; r++) out[r] ^= 0x80808080u; // signed
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    four_halves(group + blocks * 512 + block * 32, part, scales->first);
    whole(scales);
}
