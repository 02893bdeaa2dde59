// Values as blocks of files. An item takes two blocks, which are whole words whatever their type, and goes through their
// bytes; quanta are computed where they are needed, from the block's scales.

// A block with its scales: the values, the bits of d and of m or dmin, and for each sub-block how values become quanta, and
// its scale and minimum as they are stored.
typedef struct {
    const GLOBAL float *values;
    uint type, d, m;
    float inverses[16], least[16];
    uint scales[16], minima[16];
} Block;

FN float inverse_of(float x) { return x == 0.0f ? 0.0f : 1.0f / x; }
FN float half_value(uint bits) { return AS_FLOAT(f32_of_half(bits)); }
FN uint half_bits(float value) { return half_of_f32(AS_UINT(value)); }
FN float absolute(float x) { return AS_FLOAT(AS_UINT(x) & 0x7fffffffu); }

// The integer that is not larger.
FN float whole(float x) {
    float cut = (float)(int)x;
    return cut > x ? cut - 1.0f : cut;
}

// To the nearest integer, ties away from zero.
FN float rounded(float x) { return x < 0.0f ? -whole(0.5f - x) : whole(x + 0.5f); }

FN float within(float x, float least, float most) { return fmin(fmax(x, least), most); }

// The value with the largest absolute value, the first of several.
FN float largest_of(const GLOBAL float *values, uint count) {
    float largest = 0.0f;
    for (uint i = 0; i < count; i++) if (absolute(values[i]) > absolute(largest)) largest = values[i];
    return largest;
}

// The best scale of those that inverses from `first` on lead to, for quanta from `least` to `most` of values that are
// `minimum` at zero.
FN float search(
    const GLOBAL float *values, uint count, float minimum, float least, float most, float first, float step, uint steps
) {
    float best = INFINITE, kept = 0.0f;
    for (uint n = 0; n < steps; n++) {
        float inverse = first + step * (float)n, products = 0.0f, squares = 0.0f, error = 0.0f;
        for (uint i = 0; i < count; i++) {
            float q = within(rounded((values[i] - minimum) * inverse), least, most);
            products += q * (values[i] - minimum);
            squares += q * q;
        }
        float scale = squares == 0.0f ? 0.0f : products / squares;
        for (uint i = 0; i < count; i++) {
            float q = within(rounded((values[i] - minimum) * inverse), least, most);
            float rest = scale * q + minimum - values[i];
            error += rest * rest;
        }
        if (error < best) {
            best = error;
            kept = scale;
        }
    }
    return kept;
}

FN float most_of(uint type) {
    switch (type) {
    case 2: case 3: case 12: return 15.0f;
    case 6: case 7: case 13: return 31.0f;
    case 14: return 63.0f;
    case 8: return 255.0f;
    default: return 2.0f;
    }
}

// One scale, and one minimum, for the block.
FN void scale_alone(PRIVATE Block *b) {
    float minimum = b->values[0], maximum = minimum, largest = largest_of(b->values, values_of(b->type));
    for (uint i = 1; i < values_of(b->type); i++) {
        minimum = fmin(minimum, b->values[i]);
        maximum = fmax(maximum, b->values[i]);
    }
    bool has_minimum = b->type == 3 || b->type == 7;
    float d = absolute(largest);
    if (has_minimum) d = (maximum - minimum) / most_of(b->type);
    if (b->type == 2) d = largest / -8.0f;
    if (b->type == 6) d = largest / -16.0f;
    if (b->type == 8) d /= 127.0f;
    b->d = half_bits(d);
    b->m = half_bits(minimum);
    b->inverses[0] = inverse_of(d);
    b->least[0] = has_minimum ? minimum : 0.0f;
}

// Eight sub-blocks with scales and minima of 6 bits each.
FN void scale_with_minima(PRIVATE Block *b) {
    float most = most_of(b->type), scale = 0.0f, minimum = 0.0f;
    for (uint j = 0; j < 8; j++) {
        const GLOBAL float *values = b->values + j * 32;
        float least = 0.0f, largest = 0.0f;
        for (uint i = 0; i < 32; i++) {
            least = fmin(least, values[i]);
            largest = i == 0 ? values[i] : fmax(largest, values[i]);
        }
        float inverse = inverse_of(fmax(largest, least) - least);
        b->inverses[j] = search(values, 32, least, 0.0f, most, (most - 1.0f) * inverse, 0.1f * inverse, 21);
        b->least[j] = -least;
        scale = fmax(scale, b->inverses[j]);
        minimum = fmax(minimum, -least);
    }
    b->d = half_bits(scale / 63.0f);
    b->m = half_bits(minimum / 63.0f);
    for (uint j = 0; j < 8; j++) {
        float s = fmin(whole(b->inverses[j] * (63.0f * inverse_of(scale)) + 0.5f), 63.0f);
        float m = fmin(whole(b->least[j] * (63.0f * inverse_of(minimum)) + 0.5f), 63.0f);
        b->scales[j] = (uint)s;
        b->minima[j] = (uint)m;
        b->inverses[j] = inverse_of(half_value(b->d) * s);
        b->least[j] = -half_value(b->m) * m;
    }
}

// Sixteen sub-blocks with scales of 8 bits.
FN void scale_with_scales(PRIVATE Block *b) {
    float largest = 0.0f;
    for (uint j = 0; j < 16; j++) {
        float inverse = inverse_of(largest_of(b->values + j * 16, 16));
        float scale = search(b->values + j * 16, 16, 0.0f, -32.0f, 31.0f, -31.1f * inverse, -0.1f * inverse, 19);
        if (absolute(scale) > absolute(largest)) largest = scale;
        b->inverses[j] = scale;
    }
    float d = largest / -128.0f;
    b->d = half_bits(d);
    for (uint j = 0; j < 16; j++) {
        float s = within(rounded(b->inverses[j] * inverse_of(d)), -128.0f, 127.0f);
        b->scales[j] = (uint)(int)s & 0xff;
        b->inverses[j] = inverse_of(half_value(b->d) * s);
        b->least[j] = 0.0f;
    }
}

// The quantum of value `i`, as it is stored.
FN uint quantum_of(const PRIVATE Block *b, uint i) {
    uint sub = b->type == 14 ? i / 16 : b->type == 12 || b->type == 13 ? i / 32 : 0;
    float x = (b->values[i] - b->least[sub]) * b->inverses[sub], quantum;
    switch (b->type) {
    case 2: quantum = whole(x + 8.5f); break;
    case 6: quantum = whole(x + 16.5f); break;
    case 8: quantum = rounded(x) + 128.0f; break;
    case 14: quantum = rounded(x) + 32.0f; break;
    case 34: case 35: quantum = rounded(x) + 1.0f; break;
    default: quantum = whole(x + 0.5f);
    }
    return (uint)within(quantum, 0.0f, most_of(b->type));
}

// Bits from `low` on of the quanta of `count` values that lie `stride` apart, `bits` of each in a byte.
FN uint bits_of(const PRIVATE Block *b, uint first, uint stride, uint count, uint low, uint bits) {
    uint byte = 0;
    for (uint n = 0; n < count; n++) {
        byte |= ((quantum_of(b, first + n * stride) >> low) & ((1u << bits) - 1)) << (n * bits);
    }
    return byte;
}

// Five quanta in base 3, times 256/243, rounded up.
FN uint digits_of(const PRIVATE Block *b, uint first, uint stride, uint count) {
    uint number = 0;
    for (uint n = 0; n < 5; n++) number = number * 3 + (n < count ? quantum_of(b, first + n * stride) : 0);
    return (number * 256 + 242) / 243;
}

// Byte `i` of the twelve that hold eight scales and minima of 6 bits each.
FN uint packed_scale(const PRIVATE Block *b, uint i) {
    if (i < 4) return b->scales[i] | (b->scales[i + 4] >> 4 << 6);
    if (i < 8) return b->minima[i - 4] | (b->minima[i] >> 4 << 6);
    return (b->scales[i - 4] & 15) | ((b->minima[i - 4] & 15) << 4);
}

FN uint byte_of_super_block(const PRIVATE Block *b, uint at) {
    if (b->type == 14) {
        if (at < 128) return bits_of(b, at / 64 * 128 + at % 64, 64, 2, 0, 4);
        if (at < 192) return bits_of(b, (at - 128) / 32 * 128 + at % 32, 32, 4, 4, 2);
        if (at < 208) return b->scales[at - 192];
    } else if (b->type == 34) {
        if (at < 32) return digits_of(b, at, 32, 5);
        if (at < 48) return digits_of(b, 160 + at - 32, 16, 5);
        if (at < 52) return digits_of(b, 240 + at - 48, 4, 4);
    } else if (at < 64) {
        return bits_of(b, at / 32 * 128 + at % 32, 32, 4, 0, 2);
    }
    return (b->d >> (at % 2 * 8)) & 0xff;
}

// Byte `at` of a block: the formats are those of the table of tensor types.
FN uint byte_of(const PRIVATE Block *b, uint at) {
    uint type = b->type;
    if (type == 14 || type == 34 || type == 35) return byte_of_super_block(b, at);
    if (at < 2) return (b->d >> (at * 8)) & 0xff;
    if (type == 8) return quantum_of(b, at - 2) ^ 0x80;
    if (type == 2) return bits_of(b, at - 2, 16, 2, 0, 4);
    if (type == 6) return at < 6 ? bits_of(b, (at - 2) * 8, 1, 8, 4, 1) : bits_of(b, at - 6, 16, 2, 0, 4);
    if (at < 4) return (b->m >> (at % 2 * 8)) & 0xff;
    if (type == 3) return bits_of(b, at - 4, 16, 2, 0, 4);
    if (type == 7) return at < 8 ? bits_of(b, (at - 4) * 8, 1, 8, 4, 1) : bits_of(b, at - 8, 16, 2, 0, 4);
    if (at < 16) return packed_scale(b, at - 4);
    if (type == 13 && at < 48) return bits_of(b, at - 16, 32, 8, 4, 1);
    uint i = at - (type == 13 ? 48 : 16);
    return bits_of(b, i / 32 * 64 + i % 32, 32, 2, 0, 4);
}

KERNEL(ITEMS) encode_blocks(
    const GLOBAL float *RESTRICT x, GLOBAL uint *RESTRICT out, uint type, uint count
) {
    BEGIN();
    uint pair = GROUP(0) * ITEMS + ITEM, bytes = bytes_of(type);
    if (pair >= (count + 1) / 2) return;
    size_t place = (size_t)pair * (bytes / 2);
    uint word = 0, filled = 0;
    for (uint block = 2 * pair; block < 2 * pair + 2 && block < count; block++) {
        Block b;
        b.values = x + (size_t)block * values_of(type);
        b.type = type;
        b.d = b.m = 0;
        if (type == 12 || type == 13) scale_with_minima(&b);
        else if (type == 14) scale_with_scales(&b);
        else scale_alone(&b);
        for (uint at = 0; at < bytes; at++) {
            word |= byte_of(&b, at) << (8 * filled);
            if (++filled == 4) {
                out[place++] = word;
                word = filled = 0;
            }
        }
    }
    if (filled > 0) out[place] = word;
}
