// Rotary position embedding. Angles are integers, in 2^32ths of a turn. An item writes a word, of one value or
// two.

FN uint angle_of(uint position, uint low, uint high) {
    uint a = position & 0xffff, b = position >> 16, c = low & 0xffff, d = low >> 16;
    uint middle = a * d + ((a * c) >> 16), other = b * c + (middle & 0xffff); // neither can overflow
    return position * high + b * d + (middle >> 16) + (other >> 16);
}

// What the first or the second value of a pair becomes.
FN float turned_value(uint angle, float first, float second, bool is_first) {
    uint quarter = (angle + (1u << 29)) >> 30;
    float x = (float)(int)(angle - (quarter << 30)) * 1.4629180793e-9f, z = x * x;
    float sine = fma(x * z, fma(z, fma(z, fma(z, 2.75573192e-6f, -1.98412698e-4f), 8.33333333e-3f), -0.166666667f), x);
    float cosine = fma(z, fma(z, fma(z, fma(z, 2.48015873e-5f, -1.38888889e-3f), 4.16666667e-2f), -0.5f), 1.0f);
    float s = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    float c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
    return is_first ? fma(first, c, -(second * s)) : fma(first, s, second * c);
}

KERNEL(ITEMS) rope(
    const GLOBAL uint *RESTRICT positions, const GLOBAL uint *RESTRICT turns, const GLOBAL uint *RESTRICT x,
    GLOBAL uint *RESTRICT out, uint type, uint rows, uint heads, uint head_dim, uint rope_dims, uint pairing
) {
    BEGIN();
    uint count = rows * heads * head_dim, pairs = rope_dims / 2, both = 0;
    uint word = GROUP(0) * ITEMS + ITEM, start = word * in_a_word(type);
    if (start >= count) return;
    for (uint n = 0; n < in_a_word(type) && start + n < count; n++) {
        uint head = (start + n) / head_dim, at = (start + n) % head_dim, bits;
        if (at < rope_dims) {
            uint pair = pairing == 0 ? at / 2 : at % pairs;
            bool is_first = pairing == 0 ? at % 2 == 0 : at < pairs;
            size_t a = (size_t)head * head_dim + (pairing == 0 ? 2 * pair : pair), b = a + (pairing == 0 ? 1 : pairs);
            uint angle = angle_of(positions[head / heads], turns[2 * pair], turns[2 * pair + 1]);
            bits = element_of(type, turned_value(angle, element_value(x, type, a), element_value(x, type, b), is_first));
        } else {
            bits = element(x, type, start + n);
        }
        both |= bits << (16 * n);
    }
    out[word] = both;
}
