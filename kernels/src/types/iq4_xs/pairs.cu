// IQ4_XS.

FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
    pair_nibbles(group, block, out);
    #pragma unroll
    for (uint i = 0; i < 4; i++) out[i] = values_of_indices(out[i]);
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
    float d[2];
    pair_halves(group + blocks * 272 + block / 8 * 32, d);
    uint subs = *(const ushort *)(group + blocks * 256 + block * 16 + ITEM % 32 / 4 * 2);
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        pair->first[r] = d[r] * (float)BYTE(subs, r);
        pair->minimum[r] = 0.0f;
    }
}
