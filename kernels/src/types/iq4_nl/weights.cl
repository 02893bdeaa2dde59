// IQ4_NL: nibbles that index a table of signed bytes, then f16 scales.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 32 * 288 + 63) & ~63u; }

// Values of four indices, one per byte.
FN uint values_of_indices(uint indices) {
#ifdef __CUDA_ARCH__
    // A permutation takes four indices of 3 bits, 4 bits apart.
    uint three = indices & 0x07070707u;
    three |= three >> 4;
    three = (three & 0xff) | ((three >> 8) & 0xff00);
    uint low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, three), high = __byte_perm(0x26190d01u, 0x71594535u, three);
    uint is_high = ((indices >> 3) & 0x01010101u) * 255;
    return (low & ~is_high) | (high & is_high);
#else
    uint out = 0;
    for (uint shift = 0; shift < 32; shift += 8) {
        uint index = indices >> shift;
        uint low = index & 4 ? 0xf6eaddcfu : 0xbfad9881u, high = index & 4 ? 0x71594535u : 0x26190d01u;
        out |= (((index & 8 ? high : low) >> (index % 4 * 8)) & 255) << shift;
    }
    return out;
#endif
}

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    nibbles(group, block, quad, part, out);
    for (uint r = 0; r < 4; r++) out[r] = values_of_indices(out[r]);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    four_halves(group + blocks * 256 + block * 32, part, scales->first);
    whole(scales);
}
