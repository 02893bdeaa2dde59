// Values of blocks as files store them: the formats are those of the table of tensor types. An item takes a value.

FN uint byte_at(const GLOBAL uint *words, size_t at) { return (words[at / 4] >> (at % 4 * 8)) & 0xff; }

// The half at an even place.
FN float half_at(const GLOBAL uint *words, size_t at) {
    return AS_FLOAT(f32_of_half((words[at / 4] >> (at % 4 * 8)) & 0xffff));
}

// `bits` bits from bit `low` of a byte on.
FN uint bits_at(const GLOBAL uint *words, size_t at, uint low, uint bits) {
    return (byte_at(words, at) >> low) & ((1u << bits) - 1);
}

FN uint values_of(uint type) { return type < 10 ? 32 : 256; }

FN uint bytes_of(uint type) {
    switch (type) {
    case 2: return 18;
    case 3: return 20;
    case 6: return 22;
    case 7: return 24;
    case 8: return 34;
    case 12: return 144;
    case 13: return 176;
    case 14: return 210;
    case 34: return 54;
    default: return 66;
    }
}

// Value `i` of a Q4_K or Q5_K block.
FN float value_with_minimum(const GLOBAL uint *words, size_t start, uint i, bool has_fifth) {
    uint sub = i / 32, scale, minimum;
    size_t scales = start + 4;
    if (sub < 4) {
        scale = byte_at(words, scales + sub) & 63;
        minimum = byte_at(words, scales + sub + 4) & 63;
    } else {
        uint both = byte_at(words, scales + sub + 4);
        scale = (both & 15) | (bits_at(words, scales + sub - 4, 6, 2) << 4);
        minimum = (both >> 4) | (bits_at(words, scales + sub, 6, 2) << 4);
    }
    size_t low = start + (has_fifth ? 48 : 16) + sub / 2 * 32;
    uint quantum = bits_at(words, low + i % 32, sub % 2 * 4, 4);
    if (has_fifth) quantum |= bits_at(words, start + 16 + i % 32, sub, 1) << 4;
    return half_at(words, start) * (float)scale * (float)quantum - half_at(words, start + 2) * (float)minimum;
}

FN float value_of_q6_k(const GLOBAL uint *words, size_t start, uint i) {
    uint half_block = i / 128, quarter = i / 32 % 4;
    uint quantum = bits_at(words, start + half_block * 64 + quarter % 2 * 32 + i % 32, quarter / 2 * 4, 4)
        | (bits_at(words, start + 128 + half_block * 32 + i % 32, quarter * 2, 2) << 4);
    int scale = (int)(byte_at(words, start + 192 + i / 16) ^ 0x80) - 128;
    return half_at(words, start + 208) * (float)scale * ((float)quantum - 32.0f);
}

FN float value_of_tq1_0(const GLOBAL uint *words, size_t start, uint i) {
    uint at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
    uint digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    uint number = byte_at(words, start + at);
    for (uint n = 0; n < digit; n++) number = number * 3 & 0xff;
    return half_at(words, start + 52) * ((float)(number * 3 >> 8) - 1.0f);
}

// Value `i` of the block that starts at a byte.
FN float value_of(const GLOBAL uint *words, uint type, size_t start, uint i) {
    switch (type) {
    case 12: return value_with_minimum(words, start, i, false);
    case 13: return value_with_minimum(words, start, i, true);
    case 14: return value_of_q6_k(words, start, i);
    case 34: return value_of_tq1_0(words, start, i);
    case 35:
        return half_at(words, start + 64)
            * ((float)bits_at(words, start + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2) - 1.0f);
    }
    float d = half_at(words, start);
    uint nibble = i / 16 * 4;
    switch (type) {
    case 2: return d * ((float)bits_at(words, start + 2 + i % 16, nibble, 4) - 8.0f);
    case 3: return d * (float)bits_at(words, start + 4 + i % 16, nibble, 4) + half_at(words, start + 2);
    case 8: return d * ((float)(byte_at(words, start + 2 + i) ^ 0x80) - 128.0f);
    }
    size_t high = start + (type == 6 ? 2 : 4);
    uint quantum = bits_at(words, high + 4 + i % 16, nibble, 4) | (bits_at(words, high + i / 8, i % 8, 1) << 4);
    return type == 6 ? d * ((float)quantum - 16.0f) : d * (float)quantum + half_at(words, start + 2);
}

KERNEL(ITEMS) decode_blocks(
    const GLOBAL uint *RESTRICT blocks, GLOBAL float *RESTRICT out, uint type, uint count
) {
    BEGIN();
    uint i = GROUP(0) * ITEMS + ITEM, values = values_of(type);
    if (i < count * values) out[i] = value_of(blocks, type, (size_t)(i / values) * bytes_of(type), i % values);
}
