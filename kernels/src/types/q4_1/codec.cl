// Q4_1, as files store it.

FN float value_of_q4_1(const GLOBAL uint *words, size_t start, uint i) {
    return half_at(words, start) * nibble_at(words, start + 4, i) + half_at(words, start + 2);
}

FN void scale_q4_1(PRIVATE Block *b) { scale_with_minimum(b, 15.0f); }
FN uint quant_of_q4_1(const PRIVATE Block *b, uint i) { return clamped(whole(steps_of(b, i, 0) + 0.5f), 15.0f); }
FN uint byte_of_q4_1(const PRIVATE Block *b, uint at) {
    return at < 4 ? half_byte(at < 2 ? b->d : b->m, at) : nibbles_of(b, at - 4);
}
