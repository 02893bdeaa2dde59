// MXFP4: nibbles that index a table of signed bytes, then exponents of 8 bits.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 32 * 272 + 63) & ~63u; }

// Half the scale that an exponent stands for: the table holds doubled values.
FN float half_scale(uint exponent) { return AS_FLOAT(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23); }

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    uint exponents = LOAD1(group + blocks * 256 + block * 16 + part * 4);
    for (uint r = 0; r < 4; r++) scales->first[r] = half_scale((exponents >> (8 * r)) & 255);
    whole(scales);
}
