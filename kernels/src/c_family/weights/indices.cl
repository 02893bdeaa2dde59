// Values of four indices, one per byte, in a table of signed bytes: TABLE_0 holds the values of indices 0 to 3, and so on.

FN uint values_of_indices(uint indices) {
#ifdef __CUDA_ARCH__
    // A permutation takes four indices of 3 bits, 4 bits apart.
    uint three = indices & 0x07070707u;
    three |= three >> 4;
    three = (three & 0xff) | ((three >> 8) & 0xff00);
    uint low = __byte_perm(TABLE_0, TABLE_4, three), high = __byte_perm(TABLE_8, TABLE_12, three);
    uint is_high = ((indices >> 3) & 0x01010101u) * 255;
    return (low & ~is_high) | (high & is_high);
#else
    uint out = 0;
    for (uint shift = 0; shift < 32; shift += 8) {
        uint index = indices >> shift;
        uint low = index & 4 ? TABLE_4 : TABLE_0, high = index & 4 ? TABLE_12 : TABLE_8;
        out |= (((index & 8 ? high : low) >> (index % 4 * 8)) & 255) << shift;
    }
    return out;
#endif
}

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    nibbles(group, block, quad, part, out);
    for (uint r = 0; r < 4; r++) out[r] = values_of_indices(out[r]);
}
