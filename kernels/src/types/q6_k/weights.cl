// Q6_K: nibbles, then pairs of high bits, then i8 scales of both halves, then for each 256 columns f16 d.

#define OFFSET 32
#define UNEQUAL 1
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 256 * (8 * 416 + 32) + 63) & ~63u; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    uint high[4];
    nibbles(group, block, quad, part, out);
    bits(group + blocks * 256 + block * 128, quad & 1, part, (quad >> 1) * 2, 0x03030303u, high);
    for (uint r = 0; r < 4; r++) out[r] |= high[r] << 4;
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    float d[4];
    four_halves(group + blocks * 416 + block / 8 * 32, part, d);
    const GLOBAL uchar *subs = group + blocks * 384 + block * 32 + part * 4;
    uint first = LOAD1(subs), last = LOAD1(subs + 16);
    for (uint r = 0; r < 4; r++) {
        scales->first[r] = d[r] * (float)BYTE(first, r);
        scales->last[r] = d[r] * (float)BYTE(last, r);
        scales->minimum[r] = 0.0f;
    }
}
