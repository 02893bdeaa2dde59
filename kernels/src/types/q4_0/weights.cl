// Q4_0: nibbles, then f16 scales.

#define OFFSET 8
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 32 * 288 + 63) & ~63u; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    nibbles(group, block, quad, part, out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    four_halves(group + blocks * 256 + block * 32, part, scales->first);
    whole(scales);
}
