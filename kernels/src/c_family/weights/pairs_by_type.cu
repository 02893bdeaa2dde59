FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
#if defined(TYPE_Q8_0)
    uint2 low = LOAD2(group + block * 512 + PLACE), high = LOAD2(group + block * 512 + 256 + PLACE);
    out[0] = low.x ^ 0x80808080u;
    out[1] = low.y ^ 0x80808080u;
    out[2] = high.x ^ 0x80808080u;
    out[3] = high.y ^ 0x80808080u;
#elif defined(TYPE_TERNARY)
    uint row = ITEM % 32 / 4 * 8, shift = ITEM % 4 * 2;
    uint2 low = LOAD2(group + block * 128 + row), high = LOAD2(group + block * 128 + 64 + row);
    out[0] = (low.x >> shift) & 0x03030303u;
    out[1] = (low.y >> shift) & 0x03030303u;
    out[2] = (high.x >> shift) & 0x03030303u;
    out[3] = (high.y >> shift) & 0x03030303u;
#else
    pair_nibbles(group, block, out);
#if defined(TYPE_Q5_0) || defined(TYPE_Q5_1) || defined(TYPE_Q5_K)
    pair_fifths(group + blocks * 256, block, out);
#elif defined(TYPE_Q6_K)
    uint t = ITEM % 4, shift = t / 2 * 2;
    uint2 both = LOAD2(group + blocks * 256 + block * 128 + t % 2 * 64 + ITEM % 32 / 4 * 8);
    out[0] |= ((both.x >> shift) & 0x03030303u) << 4;
    out[1] |= ((both.y >> shift) & 0x03030303u) << 4;
    out[2] |= ((both.x >> (shift + 4)) & 0x03030303u) << 4;
    out[3] |= ((both.y >> (shift + 4)) & 0x03030303u) << 4;
#endif
#endif
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
#if defined(TYPE_Q8_0)
    pair_whole(group + blocks * 512 + block * 32, pair);
#elif defined(TYPE_TERNARY)
    pair_whole(group + blocks * 128 + block / 8 * 32, pair);
#elif defined(TYPE_Q4_0)
    pair_whole(group + blocks * 256 + block * 32, pair);
#elif defined(TYPE_Q5_0)
    pair_whole(group + blocks * 320 + block * 32, pair);
#elif defined(TYPE_Q4_1)
    pair_minimum(group + blocks * 256 + block * 64, pair);
#elif defined(TYPE_Q5_1)
    pair_minimum(group + blocks * 320 + block * 64, pair);
#elif defined(TYPE_Q4_K)
    pair_two_level(group + blocks * 256, group + blocks * 288, block, pair);
#elif defined(TYPE_Q5_K)
    pair_two_level(group + blocks * 320, group + blocks * 352, block, pair);
#elif defined(TYPE_Q6_K)
    float d[2];
    pair_halves(group + blocks * 416 + block / 8 * 32, d);
    const uchar *subs = group + blocks * 384 + block * 32 + ITEM % 32 / 4 * 2;
    uint first = *(const ushort *)subs, last = *(const ushort *)(subs + 16);
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        pair->first[r] = d[r] * (float)BYTE(first, r);
        pair->last[r] = d[r] * (float)BYTE(last, r);
    }
#endif
}
