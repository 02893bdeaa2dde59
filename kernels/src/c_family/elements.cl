// Elements of 32 or 16 bits by the number of their type: 0 is f32, 1 f16, 2 bf16. Conversions are arithmetic on
// bits, so that every device rounds the same way: to nearest, ties to even.

FN uint in_a_word(uint type) { return type == 0 ? 1 : 2; }

// Element `i` of words, as its bits.
FN uint element(const GLOBAL uint *words, uint type, size_t i) {
    return type == 0 ? words[i] : (words[i / 2] >> (i % 2 * 16)) & 0xffff;
}

FN uint f32_of_half(uint bits) {
    uint sign = (bits & 0x8000) << 16, size = bits & 0x7fff;
    if (size > 0x7c00) return sign | 0x7fc00000u | (size << 13);
    if (size == 0x7c00) return sign | 0x7f800000u;
    if (size >= 0x400) return sign | ((size << 13) + 0x38000000u);
    return size == 0 ? sign : sign | (AS_UINT((float)size) - 0x0c000000u); // size · 2^-24
}

FN uint half_of_f32(uint bits) {
    uint sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00 | ((size >> 13) & 0x3ff);
    if (size >= 0x477ff000u) return sign | 0x7c00; // 65520 and more
    if (size >= 0x38800000u) {
        uint rest = size - 0x38000000u;
        return sign | ((rest + 0xfff + ((rest >> 13) & 1)) >> 13);
    }
    if (size < 0x33000000u) return sign; // less than half of the smallest
    uint mantissa = (size & 0x7fffff) | 0x800000, shift = 126 - (size >> 23);
    uint quanta = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return sign | (quanta + (rest > tie || (rest == tie && (quanta & 1)) ? 1 : 0));
}

FN uint brain_of_f32(uint bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

FN uint f32_of_brain(uint bits) {
    return (bits & 0x7fff) > 0x7f80 ? (bits | 0x40) << 16 : bits << 16;
}

FN uint convert_element(uint from, uint to, uint bits) {
    if (from == to) return bits;
    uint value = from == 0 ? bits : from == 1 ? f32_of_half(bits) : f32_of_brain(bits);
    return to == 0 ? value : to == 1 ? half_of_f32(value) : brain_of_f32(value);
}

// Element `i` of words as a number, and the bits of the element that a number becomes.
FN float element_value(const GLOBAL uint *words, uint type, size_t i) {
    return AS_FLOAT(convert_element(type, 0, element(words, type, i)));
}

FN uint element_of(uint type, float value) { return convert_element(0, type, AS_UINT(value)); }

// The element that a walk over six sizes meets at `i`.
FN size_t place(
    uint i, uint size_1, uint size_2, uint size_3, uint size_4, uint size_5,
    uint stride_0, uint stride_1, uint stride_2, uint stride_3, uint stride_4, uint stride_5
) {
    size_t at = (size_t)(i % size_5) * stride_5;
    if (i < size_5) return at;
    i /= size_5;
    at += (size_t)(i % size_4) * stride_4;
    i /= size_4;
    at += (size_t)(i % size_3) * stride_3;
    i /= size_3;
    at += (size_t)(i % size_2) * stride_2;
    i /= size_2;
    at += (size_t)(i % size_1) * stride_1;
    i /= size_1;
    return at + (size_t)i * stride_0;
}
