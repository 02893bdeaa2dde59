// TQ1_0 and TQ2_0: 2-bit quanta, then for each 256 columns f16 scales.

#define OFFSET 1
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 256 * (8 * 128 + 32) + 63) & ~63u; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    bits(group + block * 128, quad >> 2, part, (quad & 3) * 2, 0x03030303u, out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    four_halves(group + blocks * 128 + block / 8 * 32, part, scales->first);
    whole(scales);
}
