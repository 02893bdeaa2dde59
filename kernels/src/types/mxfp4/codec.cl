// MXFP4, as files store it.

// Doubled magnitude of quant 0 to 7.
FN float doubled_magnitude(uint quant) { return (float)(((quant < 4 ? 0x03020100u : 0x0c080604u) >> (quant % 4 * 8)) & 255); }

FN float value_of_mxfp4(const GLOBAL uint *words, size_t start, uint i) {
    uint exponent = byte_at(words, start), quant = bits_at(words, start + 1 + i % 16, i / 16 * 4, 4);
    float scale = AS_FLOAT(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return (quant & 8 ? -scale : scale) * doubled_magnitude(quant & 7);
}

FN void scale_mxfp4(PRIVATE Block *b) {
    uint exponent = AS_UINT(absolute(largest_of(b->values, 32))) >> 23;
    b->d = exponent < 2 ? 0 : exponent - 2;
    b->inverses[0] = b->d == 0 ? 0.0f : AS_FLOAT((255 - b->d) << 23);
    b->least[0] = 0.0f;
}
FN uint quant_of_mxfp4(const PRIVATE Block *b, uint i) {
    float x = steps_of(b, i, 0);
    uint quant = 0;
    while (quant < 7 && 2.0f * absolute(x) > doubled_magnitude(quant) + doubled_magnitude(quant + 1)) quant++;
    return quant > 0 && x < 0.0f ? quant | 8 : quant;
}
FN uint byte_of_mxfp4(const PRIVATE Block *b, uint at) { return at == 0 ? b->d : nibbles_of(b, at - 1); }
