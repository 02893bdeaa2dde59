// TQ2_0, as files store it.

FN float value_of_tq2_0(const GLOBAL uint *words, size_t start, uint i) {
    uint quant = bits_at(words, start + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2);
    return half_at(words, start + 64) * ((float)quant - 1.0f);
}

FN void scale_tq2_0(PRIVATE Block *b) { scale_by(b, absolute(largest_of(b->values, 256))); }
FN uint quant_of_tq2_0(const PRIVATE Block *b, uint i) { return clamped(rounded(steps_of(b, i, 0)) + 1.0f, 2.0f); }
FN uint byte_of_tq2_0(const PRIVATE Block *b, uint at) {
    return at < 64 ? bits_of(b, at / 32 * 128 + at % 32, 32, 4, 0, 2) : half_byte(b->d, at);
}
