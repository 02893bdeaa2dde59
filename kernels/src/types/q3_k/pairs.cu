// Q3_K.

FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
    const uchar *at = group + block * 192 + ITEM % 32 / 4 * 8;
    uint t = ITEM % 4, shift = t % 2 * 3;
    uint2 first = LOAD2(at + t / 2 * 64), last = LOAD2(at + 128);
    out[0] = (first.x >> shift) & 0x07070707u;
    out[1] = (first.y >> shift) & 0x07070707u;
    if (t < 2) {
        out[2] = (last.x >> shift) & 0x07070707u;
        out[3] = (last.y >> shift) & 0x07070707u;
    } else {
        uint2 low = LOAD2(at + t % 2 * 64);
        out[2] = ((low.x >> 6) & 0x03030303u) | ((last.x >> (t + 2)) & 0x04040404u);
        out[3] = ((low.y >> 6) & 0x03030303u) | ((last.y >> (t + 2)) & 0x04040404u);
    }
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
    float d[2];
    pair_halves(group + blocks * 224 + block / 8 * 32, d);
    const uchar *subs = group + blocks * 192 + block * 32 + ITEM % 32 / 4 * 2;
    uint first = *(const ushort *)subs, last = *(const ushort *)(subs + 16);
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        pair->first[r] = d[r] * (float)BYTE(first, r);
        pair->last[r] = d[r] * (float)BYTE(last, r);
    }
}
