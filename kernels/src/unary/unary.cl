// A function of each value: an item writes a word, of one value or two. Infinities, NaN and large arguments have their limits.

// The normal distribution's: e^(z²) · erfc(z) is t times a polynomial in t = 1 / (1 + 0.45 z), to 2 · 10⁻⁶ of it in all of its tail.
FN float normal_of(float x) {
    float t = 1.0f / fma(x < 0.0f ? -x : x, 0.45f * 0.70710678f, 1.0f);
    float series = fma(t, fma(t, fma(t, 0.068094056f, -0.24572294f), 0.21883775f), 0.030539254f);
    series = fma(t, fma(t, fma(t, fma(t, series, 0.19408222f), 0.2263601f), 0.2539196f), 0.25389025f);
    float tail = 0.5f * t * series * exp(-0.5f * x * x);
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
    default: return x / (1.0f + exp(-1.5957691216f * fma(0.044715f * x * x, x, x)));
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
