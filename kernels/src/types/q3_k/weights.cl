// Q3_K: 3-bit quants, then i8 scales of both halves, then for each 256 columns f16 d.

#define OFFSET 4
#define UNEQUAL 1
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 256 * (8 * 224 + 32) + 63) & ~63u; }

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    const GLOBAL uchar *at = group + block * 192;
    if (quad < 6) {
        bits(at, quad / 2, part, quad % 2 * 3, 0x07070707u, out);
        return;
    }
    uint high[4];
    bits(at, quad - 6, part, 6, 0x03030303u, out);
    bits(at, 2, part, quad - 2, 0x04040404u, high);
    for (uint r = 0; r < 4; r++) out[r] |= high[r];
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    float d[4];
    four_halves(group + blocks * 224 + block / 8 * 32, part, d);
    const GLOBAL uchar *subs = group + blocks * 192 + block * 32 + part * 4;
    uint first = LOAD1(subs), last = LOAD1(subs + 16);
    for (uint r = 0; r < 4; r++) {
        scales->first[r] = d[r] * (float)BYTE(first, r);
        scales->last[r] = d[r] * (float)BYTE(last, r);
        scales->minimum[r] = 0.0f;
    }
}
