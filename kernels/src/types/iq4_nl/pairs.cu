// IQ4_NL.

FN void pair_words(const uchar *group, uint blocks, uint block, uint out[4]) {
    pair_nibbles(group, block, out);
    #pragma unroll
    for (uint i = 0; i < 4; i++) out[i] = values_of_indices(out[i]);
}

FN void pair_scales(const uchar *group, uint blocks, uint block, Pair *pair) {
    pair_whole(group + blocks * 256 + block * 32, pair);
}
