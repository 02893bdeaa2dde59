// A function of each value: an item writes a word, of one value or two. Infinities, NaN and large arguments have their limits.

FN float tanh_of(float x) {
    float square = x * x, rest = exp(x < 0.0f ? 2.0f * x : -2.0f * x), tangent = (1.0f - rest) / (1.0f + rest);
    if (square < 0.06f) {
        float series = fma(square, 0.021869488f, -0.053968254f);
        series = fma(square, fma(square, series, 0.13333333f), -0.33333333f);
        return fma(x * square, series, x);
    }
    return x < 0.0f ? -tangent : tangent;
}

// The normal distribution's: Abramowitz and Stegun, 7.1.26.
FN float normal_of(float x) {
    float z = (x < 0.0f ? -x : x) * 0.70710678f, t = 1.0f / fma(z, 0.3275911f, 1.0f);
    float tail = fma(t, fma(t, fma(t, fma(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
    tail *= 0.5f * t * exp(-z * z);
    return x < 0.0f ? tail : 1.0f - tail;
}

FN float function_of(uint function, float x) {
    float positive = x < 0.0f ? 0.0f : x;
    switch (function) {
    case 0: return positive;
    case 1: return positive * positive;
    case 2: return 1.0f / (1.0f + exp(-x));
    case 3: return tanh_of(x);
    case 4: return exp(x);
    case 5: return log(x);
    case 6: return sqrt(x);
    case 7: return AS_FLOAT(AS_UINT(x) & 0x7fffffffu);
    case 8: return -x;
    }
    if (x < -200.0f) return -0.0f; // what follows tends to zero
    switch (function) {
    case 9: return x / (1.0f + exp(-x));
    case 10: return x * normal_of(x);
    default: return x * (0.5f + 0.5f * tanh_of(0.7978845608f * fma(0.044715f * x * x, x, x)));
    }
}

KERNEL(ITEMS) unary(
    const GLOBAL uint *RESTRICT x, GLOBAL uint *RESTRICT out, uint function, uint type, uint count
) {
    BEGIN();
    uint word = GROUP(0) * ITEMS + ITEM, start = word * in_a_word(type), both = 0;
    if (start >= count) return;
    for (uint i = 0; i < in_a_word(type) && start + i < count; i++) {
        both |= element_of(type, function_of(function, element_value(x, type, start + i))) << (16 * i);
    }
    out[word] = both;
}
