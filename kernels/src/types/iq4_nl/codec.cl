// IQ4_NL, as files store it.

// The value of a quant.
FN float value_of_index(uint index) {
    uint low = index & 4 ? 0xf6eaddcfu : 0xbfad9881u, high = index & 4 ? 0x71594535u : 0x26190d01u;
    return (float)BYTE((index & 8 ? high : low) >> (index % 4 * 8), 0);
}

FN float value_of_iq4_nl(const GLOBAL uint *words, size_t start, uint i) {
    return half_at(words, start) * value_of_index(bits_at(words, start + 2 + i % 16, i / 16 * 4, 4));
}

// The quant of the nearest value.
FN uint nearest_index(float x) {
    uint index = 0;
    while (index < 15 && 2.0f * x > value_of_index(index) + value_of_index(index + 1)) index++;
    return index;
}

// The best scale for 32 values.
FN float scale_of_indices(const GLOBAL float *values) {
    float inverse = inverse_of(largest_of(values, 32)), scale = 0.0f, best = 0.0f;
    for (int step = -7; step <= 7; step++) {
        float products = 0.0f, squares = 0.0f;
        for (uint i = 0; i < 32; i++) {
            float q = value_of_index(nearest_index(values[i] * ((float)(step - 127) * inverse)));
            products += q * values[i];
            squares += q * q;
        }
        // With the scale that fits best, the squared error is smallest where this is largest.
        float gain = products * products / squares;
        if (gain > best) {
            best = gain;
            scale = products / squares;
        }
    }
    return scale;
}

FN void scale_iq4_nl(PRIVATE Block *b) {
    b->d = half_bits(scale_of_indices(b->values));
    b->inverses[0] = inverse_of(half_value(b->d));
    b->least[0] = 0.0f;
}
FN uint quant_of_iq4_nl(const PRIVATE Block *b, uint i) { return nearest_index(steps_of(b, i, 0)); }
FN uint byte_of_iq4_nl(const PRIVATE Block *b, uint at) { return at < 2 ? half_byte(b->d, at) : nibbles_of(b, at - 2); }
