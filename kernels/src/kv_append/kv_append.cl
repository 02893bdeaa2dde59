// Keys and values into the cache. A group takes a few dimensions of one kv head, and all rows: whatever the tables
// say, groups write apart.

// Dimensions and rows that a group's items take at once.
#define SLICE 16
#define LINES (ITEMS / SLICE)

KERNEL(ITEMS) kv_append(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT k, const GLOBAL float *RESTRICT v,
    GLOBAL KV *RESTRICT keys, GLOBAL KV *RESTRICT values,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint kv_heads, uint head_dim, uint cache_blocks
) {
    BEGIN();
    uint head = GROUP(0), dim = GROUP(1) * SLICE + ITEM / LINES;
    if (dim >= head_dim) return;
    Lists at = lists(params, rows, logit_rows);
    uint used = count(params, 0, rows);
    for (uint row = ITEM % LINES; row < used; row += LINES) {
        uint sequence = at.row_sequences[row], position = at.positions[row];
        if (sequence >= sequences || position / 16 >= table_blocks) continue;
        uint block = at.tables[(size_t)sequence * table_blocks + position / 16];
        if (block >= cache_blocks) continue;
        size_t base = ((size_t)block * kv_heads + head) * head_dim * 16;
        size_t from = ((size_t)row * kv_heads + head) * head_dim + dim;
        STORE_KV(keys, base + dim * 16 + position % 16, k[from]);
        STORE_KV(values, base + position % 16 * head_dim + dim, v[from]);
    }
}
