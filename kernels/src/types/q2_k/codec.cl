// Q2_K, as files store it.

FN float value_of_q2_k(const GLOBAL uint *words, size_t start, uint i) {
    uint quant = bits_at(words, start + 16 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2);
    uint both = byte_at(words, start + i / 16);
    return half_at(words, start + 80) * (float)(both & 15) * (float)quant
        - half_at(words, start + 82) * (float)(both >> 4);
}

FN void scale_q2_k(PRIVATE Block *b) { scale_with_minima(b, 3.0f, 16, 15.0f); }
FN uint quant_of_q2_k(const PRIVATE Block *b, uint i) { return clamped(whole(steps_of(b, i, i / 16) + 0.5f), 3.0f); }

FN uint byte_of_q2_k(const PRIVATE Block *b, uint at) {
    if (at < 16) return b->scales[at] | (b->minima[at] << 4);
    if (at < 80) return bits_of(b, (at - 16) / 32 * 128 + (at - 16) % 32, 32, 4, 0, 2);
    return half_byte(at < 82 ? b->d : b->m, at);
}
