// Q3_K, as files store it.

FN float value_of_q3_k(const GLOBAL uint *words, size_t start, uint i) {
    uint quant = bits_at(words, start + 32 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2)
        | (bits_at(words, start + i % 32, i / 32, 1) << 2);
    uint j = i / 16;
    uint scale = bits_at(words, start + 96 + j % 8, j / 8 * 4, 4)
        | (bits_at(words, start + 104 + j % 4, j / 4 * 2, 2) << 4);
    return half_at(words, start + 108) * ((float)scale - 32.0f) * ((float)quant - 4.0f);
}

FN void scale_q3_k(PRIVATE Block *b) { scale_with_scales(b, -4.0f, -3.1f, 32.0f); }
FN uint quant_of_q3_k(const PRIVATE Block *b, uint i) { return clamped(rounded(steps_of(b, i, i / 16)) + 4.0f, 7.0f); }

FN uint byte_of_q3_k(const PRIVATE Block *b, uint at) {
    if (at < 32) return bits_of(b, at, 32, 8, 2, 1);
    if (at < 96) return bits_of(b, (at - 32) / 32 * 128 + at % 32, 32, 4, 0, 2);
    if (at >= 108) return half_byte(b->d, at);
    // Sixteen 6-bit scales: low nibbles, high nibbles, then the upper two bits.
    if (at < 104) return ((b->scales[at - 96] + 32) & 15) | (((b->scales[at - 88] + 32) & 15) << 4);
    uint byte = 0;
    for (uint n = 0; n < 4; n++) byte |= (((b->scales[at - 104 + n * 4] + 32) >> 4) & 3) << (n * 2);
    return byte;
}
