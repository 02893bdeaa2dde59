// MXFP4. A nibble is a sign, two bits of exponent and one of mantissa.
#define HAS_E2M1 1

FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
    pair_nibbles(group, block, out);
    #pragma unroll
    for (uint i = 0; i < 4; i++) out[i] = values_of_indices(out[i]);
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
    uint exponents = *(const ushort *)(group + blocks * 256 + block * 16 + ITEM % 32 / 4 * 2);
    pair->first[0] = half_scale(exponents & 255);
    pair->first[1] = half_scale(exponents >> 8);
    pair->minimum[0] = pair->minimum[1] = 0.0f;
}
