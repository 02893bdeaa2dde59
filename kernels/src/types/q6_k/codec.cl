// Q6_K, as files store it.

FN float value_of_q6_k(const GLOBAL uint *words, size_t start, uint i) {
    uint half_block = i / 128, quarter = i / 32 % 4;
    uint quant = bits_at(words, start + half_block * 64 + quarter % 2 * 32 + i % 32, quarter / 2 * 4, 4)
        | (bits_at(words, start + 128 + half_block * 32 + i % 32, quarter * 2, 2) << 4);
    int scale = (int)(byte_at(words, start + 192 + i / 16) ^ 0x80) - 128;
    return half_at(words, start + 208) * (float)scale * ((float)quant - 32.0f);
}

FN void scale_q6_k(PRIVATE Block *b) { scale_with_scales(b, -32.0f, -31.1f, 128.0f); }
FN uint quant_of_q6_k(const PRIVATE Block *b, uint i) {
    return clamped(rounded(steps_of(b, i, i / 16)) + 32.0f, 63.0f);
}

FN uint byte_of_q6_k(const PRIVATE Block *b, uint at) {
    if (at < 128) return bits_of(b, at / 64 * 128 + at % 64, 64, 2, 0, 4);
    if (at < 192) return bits_of(b, (at - 128) / 32 * 128 + at % 32, 32, 4, 4, 2);
    return at < 208 ? b->scales[at - 192] : half_byte(b->d, at);
}
