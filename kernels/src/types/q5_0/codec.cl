// Q5_0, as files store it.

FN float value_of_q5_0(const GLOBAL uint *words, size_t start, uint i) {
    return half_at(words, start) * (five_bits_at(words, start + 2, i) - 16.0f);
}

FN void scale_q5_0(PRIVATE Block *b) { scale_by(b, largest_of(b->values, 32) / -16.0f); }
FN uint quant_of_q5_0(const PRIVATE Block *b, uint i) { return clamped(whole(steps_of(b, i, 0) + 16.5f), 31.0f); }
FN uint byte_of_q5_0(const PRIVATE Block *b, uint at) { return at < 2 ? half_byte(b->d, at) : fives_of(b, at - 2); }
