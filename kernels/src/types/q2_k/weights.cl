// Q2_K: 2-bit quants, then a byte for each half block with its scale and minimum, then for each 256 columns
// f16 d and dmin.

#define OFFSET 0
#define UNEQUAL 1
#define MINIMA 1

FN uint group_bytes(uint columns) { return columns / 256 * (8 * 160 + 64); }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    bits(group + block * 128, quad >> 2, part, (quad & 3) * 2, 0x03030303u, out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    float d[4], dmin[4];
    const GLOBAL uchar *tops = group + blocks * 160 + block / 8 * 64;
    four_halves(tops, part, d);
    four_halves(tops + 32, part, dmin);
    const GLOBAL uchar *subs = group + blocks * 128 + block * 32 + part * 4;
    uint first = LOAD1(subs), last = LOAD1(subs + 16);
    for (uint r = 0; r < 4; r++) {
        scales->first[r] = d[r] * (float)((first >> (8 * r)) & 15);
        scales->last[r] = d[r] * (float)((last >> (8 * r)) & 15);
        scales->minimum[r] = dmin[r] * (float)((first >> (8 * r + 4)) & 15);
        scales->last_minimum[r] = dmin[r] * (float)((last >> (8 * r + 4)) & 15);
    }
}
