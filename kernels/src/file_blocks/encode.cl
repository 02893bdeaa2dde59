// Values as blocks of files. A type defines
//   scale_TYPE(b)           fills in the scales
//   quant_of_TYPE(b, i)     the stored quant of value `i`
//   byte_of_TYPE(b, at)     byte `at` of the block, from its scales and quants

// A block with its scales: the values, the bits of d and of m or dmin, and for each sub-block the conversion to
// quants, and scale and minimum as stored.
typedef struct {
    const GLOBAL float *values;
    uint type, d, m;
    float inverses[16], least[16];
    uint scales[16], minima[16];
    uchar quants[256];
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

// The value with the largest magnitude, the first of several.
FN float largest_of(const GLOBAL float *values, uint count) {
    float largest = 0.0f;
    for (uint i = 0; i < count; i++) if (absolute(values[i]) > absolute(largest)) largest = values[i];
    return largest;
}

// The best of the scales that inverses from `first` on lead to, for quants from `least` to `most`, where quant zero is
// `minimum`.
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

// One scale for the whole block.
FN void scale_by(PRIVATE Block *b, float d) {
    b->d = half_bits(d);
    b->inverses[0] = inverse_of(d);
    b->least[0] = 0.0f;
}

// One scale and one minimum for 32 values, for quants from 0 to `most`.
FN void scale_with_minimum(PRIVATE Block *b, float most) {
    float minimum = b->values[0], maximum = minimum;
    for (uint i = 1; i < 32; i++) {
        minimum = fmin(minimum, b->values[i]);
        maximum = fmax(maximum, b->values[i]);
    }
    scale_by(b, (maximum - minimum) / most);
    b->m = half_bits(minimum);
    b->least[0] = minimum;
}

// Sub-blocks of `size` values, with scales and minima up to `codes`, for quants from 0 to `most`.
FN void scale_with_minima(PRIVATE Block *b, float most, uint size, float codes) {
    float scale = 0.0f, minimum = 0.0f;
    for (uint j = 0; j < 256 / size; j++) {
        const GLOBAL float *values = b->values + j * size;
        float least = 0.0f, largest = 0.0f;
        for (uint i = 0; i < size; i++) {
            least = fmin(least, values[i]);
            largest = i == 0 ? values[i] : fmax(largest, values[i]);
        }
        float inverse = inverse_of(fmax(largest, least) - least);
        b->inverses[j] = search(values, size, least, 0.0f, most, (most - 1.0f) * inverse, 0.1f * inverse, 21);
        b->least[j] = -least;
        scale = fmax(scale, b->inverses[j]);
        minimum = fmax(minimum, -least);
    }
    b->d = half_bits(scale / codes);
    b->m = half_bits(minimum / codes);
    for (uint j = 0; j < 256 / size; j++) {
        float s = fmin(whole(b->inverses[j] * (codes * inverse_of(scale)) + 0.5f), codes);
        float m = fmin(whole(b->least[j] * (codes * inverse_of(minimum)) + 0.5f), codes);
        b->scales[j] = (uint)s;
        b->minima[j] = (uint)m;
        b->inverses[j] = inverse_of(half_value(b->d) * s);
        b->least[j] = -half_value(b->m) * m;
    }
}

// Sixteen sub-blocks with signed scales below `most`, for quants from `least` on, as many negative as others. The first
// candidate maps the largest value to `first`.
FN void scale_with_scales(PRIVATE Block *b, float least, float first, float most) {
    float largest = 0.0f;
    for (uint j = 0; j < 16; j++) {
        float inverse = inverse_of(largest_of(b->values + j * 16, 16));
        float scale = search(b->values + j * 16, 16, 0.0f, least, -least - 1.0f, first * inverse, -0.1f * inverse, 19);
        if (absolute(scale) > absolute(largest)) largest = scale;
        b->inverses[j] = scale;
    }
    float d = largest / -most;
    b->d = half_bits(d);
    for (uint j = 0; j < 16; j++) {
        float s = within(rounded(b->inverses[j] * inverse_of(d)), -most, most - 1.0f);
        b->scales[j] = (uint)(int)s & 0xff;
        b->inverses[j] = inverse_of(half_value(b->d) * s);
        b->least[j] = 0.0f;
    }
}

// Value `i` in quant steps of sub-block `sub`.
FN float steps_of(const PRIVATE Block *b, uint i, uint sub) {
    return (b->values[i] - b->least[sub]) * b->inverses[sub];
}

FN uint clamped(float quant, float most) { return (uint)within(quant, 0.0f, most); }

// Byte 0 or 1 of 16 bits.
FN uint half_byte(uint bits, uint at) { return (bits >> (at % 2 * 8)) & 0xff; }

// Packs quants of `count` values, `stride` apart, into a byte: `bits` bits of each, starting at bit `low`.
FN uint bits_of(const PRIVATE Block *b, uint first, uint stride, uint count, uint low, uint bits) {
    uint byte = 0;
    for (uint n = 0; n < count; n++) {
        byte |= ((b->quants[first + n * stride] >> low) & ((1u << bits) - 1)) << (n * bits);
    }
    return byte;
}

// Byte `at` of 32 nibbles, and of 32 fifth bits before them.
FN uint nibbles_of(const PRIVATE Block *b, uint at) { return bits_of(b, at, 16, 2, 0, 4); }
FN uint fives_of(const PRIVATE Block *b, uint at) {
    return at < 4 ? bits_of(b, at * 8, 1, 8, 4, 1) : nibbles_of(b, at - 4);
}

// Byte `at` of d, dmin, and eight 6-bit scales and minima.
FN uint byte_with_minima(const PRIVATE Block *b, uint at) {
    if (at < 4) return half_byte(at < 2 ? b->d : b->m, at);
    if (at < 8) return b->scales[at - 4] | (b->scales[at] >> 4 << 6);
    if (at < 12) return b->minima[at - 8] | (b->minima[at - 4] >> 4 << 6);
    return (b->scales[at - 8] & 15) | ((b->minima[at - 8] & 15) << 4);
}
