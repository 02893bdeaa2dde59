// Q4_K, as files store it.

FN float value_of_q4_k(const GLOBAL uint *words, size_t start, uint i) {
    uint quant = bits_at(words, start + 16 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4);
    return value_with_minimum(words, start, i / 32, quant);
}

FN void scale_q4_k(PRIVATE Block *b) { scale_with_minima(b, 15.0f, 32, 63.0f); }
FN uint quant_of_q4_k(const PRIVATE Block *b, uint i) { return clamped(whole(steps_of(b, i, i / 32) + 0.5f), 15.0f); }

FN uint byte_of_q4_k(const PRIVATE Block *b, uint at) {
    if (at < 16) return byte_with_minima(b, at);
    uint i = at - 16;
    return bits_of(b, i / 32 * 64 + i % 32, 32, 2, 0, 4);
}
