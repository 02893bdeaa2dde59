// Q8_0, as files store it.

FN float value_of_q8_0(const GLOBAL uint *words, size_t start, uint i) {
    return half_at(words, start) * ((float)(byte_at(words, start + 2 + i) ^ 0x80) - 128.0f);
}

FN void scale_q8_0(PRIVATE Block *b) { scale_by(b, absolute(largest_of(b->values, 32)) / 127.0f); }
FN uint quant_of_q8_0(const PRIVATE Block *b, uint i) { return clamped(rounded(steps_of(b, i, 0)) + 128.0f, 255.0f); }
FN uint byte_of_q8_0(const PRIVATE Block *b, uint at) {
    return at < 2 ? half_byte(b->d, at) : b->quants[at - 2] ^ 0x80u;
}
