// Q4_K: nibbles, then u8 scales and minima, then for each 256 columns f16 d and dmin.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 1

FN uint group_bytes(uint columns) { return columns / 256 * (8 * 288 + 64); }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    nibbles(group, block, quad, part, out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    two_level(group + blocks * 256, group + blocks * 288, block, part, scales);
}
