// F8_E4M3: floats of 8 bits, then f32 scales. Only kernels that multiply by f32 read this type.

#define OFFSET 0
#define UNEQUAL 0
#define MINIMA 0

FN uint group_bytes(uint columns) { return (columns / 32 * 576 + 63) & ~63u; }

// Value of a quant. The arithmetic avoids subnormal floats, which a device may flush to zero.
FN float value_of_quant(uint quant) {
    uint magnitude = quant & 0x7f;
    float value = magnitude < 8 ? (float)magnitude * 0.001953125f : AS_FLOAT((magnitude << 20) + 0x3c000000u);
    return quant & 0x80 ? -value : value;
}

// The shared sources read each byte of a word with this macro, and convert the result to f32.
#undef BYTE
#define BYTE(word, i) value_of_quant((word) >> (8 * (i)))

FN void quad_words(const GLOBAL uchar *group, uint blocks, uint block, uint quad, uint part, uint out[4]) {
    words(LOAD4(group + block * 512 + quad * 64 + part * 16), out);
}

FN void block_scales(const GLOBAL uchar *group, uint blocks, uint block, uint part, PRIVATE Scales *scales) {
    uint4 bytes = LOAD4(group + blocks * 512 + block * 64 + part * 16);
    scales->first[0] = AS_FLOAT(bytes.x);
    scales->first[1] = AS_FLOAT(bytes.y);
    scales->first[2] = AS_FLOAT(bytes.z);
    scales->first[3] = AS_FLOAT(bytes.w);
    whole(scales);
}
