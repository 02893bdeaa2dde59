// The lists of a parameter block with these capacities, by their first words.
typedef struct {
    const GLOBAL uint *positions;
    const GLOBAL uint *row_sequences;
    const GLOBAL uint *tables;
} Lists;

FN Lists lists(const GLOBAL uint *params, uint rows, uint logit_rows) {
    Lists lists;
    lists.positions = params + 4 + (size_t)rows;
    lists.row_sequences = lists.positions + rows;
    lists.tables = lists.row_sequences + rows + logit_rows;
    return lists;
}
