// Q5_1: nibbles, then fifth bits, then f16 scales and minima.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 1

FN uint group_bytes(uint columns) { return columns / 32 * 384; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    five_bits(group, group + blocks * 256, block, quad, part, out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    scale_and_minimum(group + blocks * 320, block, part, scales);
}
