// Values of blocks as files store them. A type defines
//   value_of_TYPE(words, start, i)    value `i` of the block that starts at a byte

FN uint byte_at(const GLOBAL uint *words, size_t at) { return (words[at / 4] >> (at % 4 * 8)) & 0xff; }

// The f16 value at an even byte.
FN float half_at(const GLOBAL uint *words, size_t at) {
    return AS_FLOAT(f32_of_half((words[at / 4] >> (at % 4 * 8)) & 0xffff));
}

// `bits` bits of a byte, from bit `low` on.
FN uint bits_at(const GLOBAL uint *words, size_t at, uint low, uint bits) {
    return (byte_at(words, at) >> low) & ((1u << bits) - 1);
}

// Quant `i` of 32: nibbles, values i and i + 16 in one byte.
FN float nibble_at(const GLOBAL uint *words, size_t at, uint i) {
    return (float)bits_at(words, at + i % 16, i / 16 * 4, 4);
}

// Quant `i` of 32: fifth bits, then nibbles.
FN float five_bits_at(const GLOBAL uint *words, size_t at, uint i) {
    return nibble_at(words, at + 4, i) + (float)(bits_at(words, at + i / 8, i % 8, 1) << 4);
}

// Value of a quant of a block with d, dmin, and packed scales and minima of 6 bits for each 32 values.
FN float value_with_minimum(const GLOBAL uint *words, size_t start, uint sub, uint quant) {
    uint scale, minimum;
    size_t scales = start + 4;
    if (sub < 4) {
        scale = byte_at(words, scales + sub) & 63;
        minimum = byte_at(words, scales + sub + 4) & 63;
    } else {
        uint both = byte_at(words, scales + sub + 4);
        scale = (both & 15) | (bits_at(words, scales + sub - 4, 6, 2) << 4);
        minimum = (both >> 4) | (bits_at(words, scales + sub, 6, 2) << 4);
    }
    return half_at(words, start) * (float)scale * (float)quant - half_at(words, start + 2) * (float)minimum;
}
