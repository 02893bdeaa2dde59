// IQ4_XS, as files store it.

FN float value_of_iq4_xs(const GLOBAL uint *words, size_t start, uint i) {
    uint j = i / 32;
    uint scale = bits_at(words, start + 4 + j / 2, j % 2 * 4, 4) | (bits_at(words, start + 2 + j / 4, j % 4 * 2, 2) << 4);
    uint index = bits_at(words, start + 8 + j * 16 + i % 16, i / 16 % 2 * 4, 4);
    return half_at(words, start) * ((float)scale - 32.0f) * value_of_index(index);
}

FN void scale_iq4_xs(PRIVATE Block *b) {
    float largest = 0.0f;
    for (uint j = 0; j < 8; j++) {
        b->inverses[j] = scale_of_indices(b->values + j * 32);
        if (absolute(b->inverses[j]) > absolute(largest)) largest = b->inverses[j];
    }
    float d = largest / -32.0f;
    b->d = half_bits(d);
    for (uint j = 0; j < 8; j++) {
        float s = within(rounded(b->inverses[j] * inverse_of(d)), -32.0f, 31.0f);
        b->scales[j] = (uint)(s + 32.0f);
        b->inverses[j] = inverse_of(half_value(b->d) * s);
        b->least[j] = 0.0f;
    }
}
FN uint quant_of_iq4_xs(const PRIVATE Block *b, uint i) { return nearest_index(steps_of(b, i, i / 32)); }

FN uint byte_of_iq4_xs(const PRIVATE Block *b, uint at) {
    if (at < 2) return half_byte(b->d, at);
    if (at >= 8) return bits_of(b, (at - 8) / 16 * 32 + (at - 8) % 16, 16, 2, 0, 4);
    if (at >= 4) return (b->scales[(at - 4) * 2] & 15) | ((b->scales[(at - 4) * 2 + 1] & 15) << 4);
    uint byte = 0;
    for (uint n = 0; n < 4; n++) byte |= (b->scales[(at - 2) * 4 + n] >> 4) << (n * 2);
    return byte;
}
