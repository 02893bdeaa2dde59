// Rope and append of few rows: a group takes one head of a row, of queries, keys or values; an item a pair, or a value.

// sin and cos of position · frequency, times the magnitude. The product is taken in two parts, for its rounding error is not
// small beside one turn when positions are large.
FN void turn(uint position, float frequency, float magnitude, PRIVATE float *sine, PRIVATE float *cosine) {
    float angle = (float)position * frequency;
    float rest = fma((float)position, frequency, -angle);
    float s = sin(angle) * magnitude, c = cos(angle) * magnitude;
    float half_square = 0.5f * rest * rest;
    *sine = fma(c, rest, fma(-s, half_square, s));
    *cosine = fma(-s, rest, fma(-c, half_square, c));
}

KERNEL(ITEMS) rope_append(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT frequencies,
    GLOBAL KV *RESTRICT keys, GLOBAL KV *RESTRICT values,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint heads, uint kv_heads, uint head_dim,
    uint cache_blocks, uint rope_dims, uint pairing, uint magnitude, uint tables
) {
    LAUNCH_NEXT();
    // No launch writes parameters and frequencies: they are read before the launch before has ended.
    uint head = GROUP(0), row = GROUP(1), pairs = rope_dims / 2;
    if (row >= count(params, 0, rows)) {
        AWAIT_LAST();
        return;
    }
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row], position = at.positions[row];
    frequencies += (size_t)min(sequence, tables - 1) * pairs;
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    bool exists = sequence < sequences && position / 16 < table_blocks;
    uint block = exists ? table_of(at, row, sequences, table_blocks)[position / 16] : cache_blocks;
    exists = block < cache_blocks;
    size_t base = exists ? ((size_t)block * kv_heads + (head - heads) % kv_heads) * head_dim * 16 : 0;
    float *from = qkv + ((size_t)row * (heads + 2 * kv_heads) + head) * head_dim;
    float sine = 0.0f, cosine = 1.0f;
    if (!is_value && ITEM < pairs) turn(position, frequencies[ITEM], AS_FLOAT(magnitude), &sine, &cosine);
    AWAIT_LAST();
    if (!is_query && !exists) return;
    if (is_value) {
        values += base + position % 16 * head_dim;
        for (uint d = ITEM; d < head_dim; d += ITEMS) STORE_KV(values, d, from[d]);
        return;
    }
    keys += base + position % 16;
    #pragma unroll 1
    for (uint i = ITEM; i < pairs; i += ITEMS) {
        if (i >= ITEMS) turn(position, frequencies[i], AS_FLOAT(magnitude), &sine, &cosine);
        uint first = pairing == 0 ? 2 * i : i, second = pairing == 0 ? 2 * i + 1 : i + pairs;
        float a = from[first], b = from[second];
        float turned_a = fma(a, cosine, -(b * sine)), turned_b = fma(a, sine, b * cosine);
        if (is_query) {
            from[first] = turned_a;
            from[second] = turned_b;
        } else {
            STORE_KV(keys, first * 16, turned_a);
            STORE_KV(keys, second * 16, turned_b);
        }
    }
    if (is_query) return;
    for (uint d = rope_dims + ITEM; d < head_dim; d += ITEMS) STORE_KV(keys, d * 16, from[d]);
}
