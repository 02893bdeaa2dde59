// The lists of a parameter block with these capacities, by their first words.
typedef struct {
    const GLOBAL uint *positions;
    const GLOBAL uint *row_sequences;
    const GLOBAL uint *table_starts;
    const GLOBAL uint *tables;
} Lists;

FN Lists lists(const GLOBAL uint *params, uint rows, uint logit_rows) {
    Lists lists;
    lists.positions = params + 4 + (size_t)rows;
    lists.row_sequences = lists.positions + rows;
    lists.table_starts = lists.row_sequences + rows + logit_rows;
    lists.tables = lists.table_starts + rows;
    return lists;
}

// The first of the `seen` positions that a row sees. The highest bit of a window says that it is the size of chunks.
FN uint window_start(uint seen, uint window) {
    bool is_chunked = window > 0x80000000u && window != ~0u;
    return seen - min(seen, is_chunked ? (seen - 1) % (window & 0x7fffffffu) + 1 : window);
}

// The block table of a row. If the row's sequence exists, `table_blocks` words from there on are in the parameter block.
FN const GLOBAL uint *table_of(Lists at, uint row, uint sequences, uint table_blocks) {
    return at.tables + min((size_t)at.table_starts[row], (size_t)(sequences - 1) * table_blocks);
}
