// Writes quant `i` of the 32 values at `values`, and the scale if `i` is zero. Bytes of quants are `stride`
// apart. With four bits, dimensions `i` and `i` + 16 share a byte. Of values of equal magnitude, the first
// determines the sign of the scale.
FN void store_quant(
    const LOCAL float *values, uint i, bool is_q4, GLOBAL uchar *quants, uint stride, GLOBAL HALF *scale
) {
    float largest = 0.0f, size = 0.0f;
    bool is_nan = false;
    for (uint j = 0; j < 32; j++) {
        float value = values[j], own = value < 0.0f ? -value : value;
        is_nan = is_nan || (AS_UINT(value) & 0x7fffffffu) > 0x7f800000u;
        if (own > size) {
            largest = value;
            size = own;
        }
    }
    float d = is_q4 ? largest / -8.0f : size / 127.0f;
    // A smaller scale is zero as f16.
    float inverse = is_nan || size < 1e-30f ? 0.0f : 1.0f / d;
    if (i == 0) STORE_HALF(scale, 0, is_nan ? AS_FLOAT(0x7fc00000u) : d);
    if (is_q4 && i >= 16) return;
    if (is_nan) {
        quants[i * stride] = 0;
    } else if (is_q4) {
        uint low = min(15u, (uint)(values[i] * inverse + 8.5f));
        uint high = min(15u, (uint)(values[i + 16] * inverse + 8.5f));
        quants[i * stride] = (uchar)(low | high << 4);
    } else {
        float quant = values[i] * inverse;
        quants[i * stride] = (uchar)(int)(quant + (quant < 0.0f ? -0.5f : 0.5f));
    }
}

KERNEL(ITEMS) rope_append(
    const GLOBAL uint *RESTRICT params, GLOBAL float *RESTRICT qkv, const GLOBAL float *RESTRICT frequencies,
    GLOBAL KV *RESTRICT keys, GLOBAL KV *RESTRICT values,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint heads, uint kv_heads, uint head_dim,
    uint cache_blocks, uint rope_dims, uint pairing, uint magnitude, uint tables
) {
    BEGIN();
    SHARED float fresh[ITEMS] ALIGNED;
    uint row = GROUP(0), kv_head = GROUP(1), group = heads / kv_heads, pairs = rope_dims / 2;
    bool is_used = row < count(params, 0, rows);
    Lists at = lists(params, rows, logit_rows);
    uint sequence = at.row_sequences[row], position = at.positions[row];
    frequencies += (size_t)min(sequence, tables - 1) * pairs;
    bool exists = is_used && sequence < sequences && position / 16 < table_blocks;
    uint block = exists ? table_of(at, row, sequences, table_blocks)[position / 16] : cache_blocks;
    GLOBAL float *joint = qkv + (size_t)row * (heads + 2 * kv_heads) * head_dim;
    GLOBAL float *q = joint + (size_t)kv_head * group * head_dim;
    const GLOBAL float *k = joint + ((size_t)heads + kv_head) * head_dim;
    const GLOBAL float *v = k + (size_t)kv_heads * head_dim;
    // Items beside each other take pairs beside each other. If there are more items than pairs, the remaining
    // items take further queries.
    uint columns = min(pairs, (uint)ITEMS), lines = columns ? ITEMS / columns : 0;
    bool turns = is_used && ITEM < columns * lines;
    for (uint i = turns ? ITEM % columns : pairs; i < pairs; i += columns) {
        float sine, cosine;
        turn(position, frequencies[i], AS_FLOAT(magnitude), &sine, &cosine);
        uint first = pairing == 0 ? 2 * i : i, second = pairing == 0 ? 2 * i + 1 : i + pairs;
        for (uint head = ITEM / columns; head < group; head += lines) {
            GLOBAL float *to = q + head * head_dim;
            float a = to[first], b = to[second];
            to[first] = fma(a, cosine, -(b * sine));
            to[second] = fma(a, sine, b * cosine);
        }
    }
    exists = block < cache_blocks;
    size_t part = exists ? (size_t)block * kv_heads + kv_head : 0, blocks = head_dim / 32;
    uint end = exists ? head_dim : 0;
    uint slot = position % 16;
    GLOBAL uchar *to_keys = keys + part * blocks * 16 * (KEY_BYTES + 2);
    GLOBAL uchar *to_values = values + part * blocks * 16 * (VALUE_BYTES + 2);
    GLOBAL HALF *key_scales = (GLOBAL HALF *)(to_keys + scales_from(head_dim, KEY_BYTES));
    GLOBAL HALF *value_scales = (GLOBAL HALF *)(to_values + scales_from(head_dim, VALUE_BYTES));
    const LOCAL float *mine = fresh + ITEM / 32 * 32;
    for (uint first = 0; first < end; first += ITEMS) {
        // An item takes one dimension of the key, turned, then of the value.
        uint dim = first + ITEM, i = dim % 32;
        size_t of_block = dim / 32;
        bool used = dim < head_dim;
        float key = used ? k[dim] : 0.0f;
        if (dim < rope_dims) {
            uint pair = pairing == 0 ? dim / 2 : dim % pairs;
            bool is_second = pairing == 0 ? dim % 2 == 1 : dim >= pairs;
            float sine, cosine;
            turn(position, frequencies[pair], AS_FLOAT(magnitude), &sine, &cosine);
            float a = k[pairing == 0 ? 2 * pair : pair], b = k[pairing == 0 ? 2 * pair + 1 : pair + pairs];
            key = is_second ? fma(a, sine, b * cosine) : fma(a, cosine, -(b * sine));
        }
        BARRIER(); // all have done with what was there
        fresh[ITEM] = in_half_range(key);
        BARRIER();
        if (used) {
            GLOBAL uchar *quants = to_keys + of_block * KEY_BYTES * 16 + slot;
            store_quant(mine, i, KEYS_Q4, quants, 16, key_scales + of_block * 16 + slot);
        }
        BARRIER();
        fresh[ITEM] = used ? in_half_range(v[dim]) : 0.0f;
        BARRIER();
        if (used) {
            size_t at_block = slot * blocks + of_block;
            store_quant(mine, i, VALUES_Q4, to_values + at_block * VALUE_BYTES, 1, value_scales + at_block);
        }
    }
}
