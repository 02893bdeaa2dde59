// Rotary position embedding in place: a group takes HEADS heads of a row, an item turns one pair of values of some of them.

#define HEADS 4

// sin and cos of position · frequency. The product is taken in two parts, for its rounding error is not small beside
// one turn when positions are large.
FN void turn(uint position, float frequency, PRIVATE float *sine, PRIVATE float *cosine) {
    float angle = (float)position * frequency;
    float rest = fma((float)position, frequency, -angle);
    float s = sin(angle), c = cos(angle);
    float half_square = 0.5f * rest * rest;
    *sine = fma(c, rest, fma(-s, half_square, s));
    *cosine = fma(-s, rest, fma(-c, half_square, c));
}

KERNEL(ITEMS) rope(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT frequencies, GLOBAL float *RESTRICT x,
    uint rows, uint heads, uint head_dim, uint rope_dims, uint pairing
) {
    BEGIN();
    uint row = GROUP(0), pairs = rope_dims / 2;
    if (row >= count(params, 0, rows) || pairs == 0) return;
    uint position = params[4 + (size_t)rows + row];
    uint start = GROUP(1) * HEADS, end = min(start + HEADS, heads);
    GLOBAL float *to = x + (size_t)row * heads * head_dim;
    // Items beside each other take pairs beside each other; where there are more items than pairs, further heads.
    uint columns = min(pairs, (uint)ITEMS), lines = ITEMS / columns;
    if (ITEM >= columns * lines) return;
    for (uint i = ITEM % columns; i < pairs; i += columns) {
        float sine, cosine;
        turn(position, frequencies[i], &sine, &cosine);
        uint first = pairing == 0 ? 2 * i : i, second = pairing == 0 ? 2 * i + 1 : i + pairs;
        for (uint head = start + ITEM / columns; head < end; head += lines) {
            GLOBAL float *values = to + head * head_dim;
            float a = values[first], b = values[second];
            values[first] = fma(a, cosine, -(b * sine));
            values[second] = fma(a, sine, b * cosine);
        }
    }
}
