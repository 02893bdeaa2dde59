// Q2_K.

FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
    uint row = ITEM % 32 / 4 * 8, shift = ITEM % 4 * 2;
    uint2 low = LOAD2(group + block * 128 + row), high = LOAD2(group + block * 128 + 64 + row);
    out[0] = (low.x >> shift) & 0x03030303u;
    out[1] = (low.y >> shift) & 0x03030303u;
    out[2] = (high.x >> shift) & 0x03030303u;
    out[3] = (high.y >> shift) & 0x03030303u;
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
    float d[2], dmin[2];
    const uchar *tops = group + blocks * 160 + block / 8 * 64;
    pair_halves(tops, d);
    pair_halves(tops + 32, dmin);
    const uchar *subs = group + blocks * 128 + block * 32 + ITEM % 32 / 4 * 2;
    uint first = *(const ushort *)subs, last = *(const ushort *)(subs + 16);
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        pair->first[r] = d[r] * (float)((first >> (8 * r)) & 15);
        pair->last[r] = d[r] * (float)((last >> (8 * r)) & 15);
        pair->minimum[r] = dmin[r] * (float)((first >> (8 * r + 4)) & 15);
        pair->last_minimum[r] = dmin[r] * (float)((last >> (8 * r + 4)) & 15);
    }
}
