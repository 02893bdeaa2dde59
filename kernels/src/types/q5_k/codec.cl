// Q5_K, as files store it.

FN float value_of_q5_k(const GLOBAL uint *words, size_t start, uint i) {
    uint quant = bits_at(words, start + 48 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4);
    quant |= bits_at(words, start + 16 + i % 32, i / 32, 1) << 4;
    return value_with_minimum(words, start, i / 32, quant);
}

FN void scale_q5_k(PRIVATE Block *b) { scale_with_minima(b, 31.0f, 32, 63.0f); }
FN uint quant_of_q5_k(const PRIVATE Block *b, uint i) { return clamped(whole(steps_of(b, i, i / 32) + 0.5f), 31.0f); }

FN uint byte_of_q5_k(const PRIVATE Block *b, uint at) {
    if (at < 16) return byte_with_minima(b, at);
    if (at < 48) return bits_of(b, at - 16, 32, 8, 4, 1);
    uint i = at - 48;
    return bits_of(b, i / 32 * 64 + i % 32, 32, 2, 0, 4);
}
