KERNEL(ITEMS) rope_append(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT frequencies,
    GLOBAL KV *RESTRICT keys, GLOBAL KV *RESTRICT values,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint heads, uint kv_heads, uint head_dim,
    uint cache_blocks, uint rope_dims, uint pairing, uint magnitude, uint tables
) {
    BEGIN();
    uint row = GROUP(0), kv_head = GROUP(1), group = heads / kv_heads, pairs = rope_dims / 2;
    if (row >= count(params, 0, rows)) return;
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row], position = at.positions[row];
    frequencies += (size_t)min(sequence, tables - 1) * pairs;
    bool exists = sequence < sequences && position / 16 < table_blocks;
    uint block = exists ? table_of(at, row, sequences, table_blocks)[position / 16] : cache_blocks;
    exists = block < cache_blocks;
    GLOBAL float *joint = qkv + (size_t)row * (heads + 2 * kv_heads) * head_dim;
    GLOBAL float *q = joint + (size_t)kv_head * group * head_dim;
    const GLOBAL float *k = joint + ((size_t)heads + kv_head) * head_dim;
    const GLOBAL float *v = k + (size_t)kv_heads * head_dim;
    size_t base = exists ? ((size_t)block * kv_heads + kv_head) * head_dim * 16 : 0;
    GLOBAL KV *to_keys = keys + base + position % 16;
    GLOBAL KV *to_values = values + base + position % 16 * head_dim;
    // Items beside each other take pairs beside each other; where there are more items than pairs, further heads: the
    // queries', then the key's.
    uint columns = min(pairs, (uint)ITEMS), lines = columns ? ITEMS / columns : 0;
    bool turns = ITEM < columns * lines;
    for (uint i = turns ? ITEM % columns : pairs; i < pairs; i += columns) {
        float sine, cosine;
        turn(position, frequencies[i], AS_FLOAT(magnitude), &sine, &cosine);
        uint first = pairing == 0 ? 2 * i : i, second = pairing == 0 ? 2 * i + 1 : i + pairs;
        for (uint head = ITEM / columns; head <= group; head += lines) {
            const GLOBAL float *from = head < group ? q + head * head_dim : k;
            float a = from[first], b = from[second];
            float turned_a = fma(a, cosine, -(b * sine)), turned_b = fma(a, sine, b * cosine);
            if (head < group) {
                q[head * head_dim + first] = turned_a;
                q[head * head_dim + second] = turned_b;
            } else if (exists) {
                STORE_KV(to_keys, first * 16, turned_a);
                STORE_KV(to_keys, second * 16, turned_b);
            }
        }
    }
    if (!exists) return;
    for (uint dim = rope_dims + ITEM; dim < head_dim; dim += ITEMS) STORE_KV(to_keys, dim * 16, k[dim]);
    for (uint dim = ITEM; dim < head_dim; dim += ITEMS) STORE_KV(to_values, dim, v[dim]);
}
