// Causal convolution: a group takes a block of columns of a row, an item a column.

#define NONE 0xffffffffu
#define ONLY_ROWS 0
#define ONLY_STATES 1

// The input of a column `back` rows before a row. Of these rows, `run` belong to the run, and the others to the state.
FN float input_of(
    const GLOBAL float *x, const GLOBAL float *old, bool has_state, uint back, uint run, uint pitch, uint columns, uint taps,
    uint from, uint before
) {
    if (back > run) return has_state ? old[(size_t)(taps - 1 + run - back) * columns] : 0.0f;
    const GLOBAL float *at = x - (size_t)back * pitch;
    return before == NONE ? at[from] : at[from] * at[before];
}

KERNEL(ITEMS) causal_conv(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weights,
    GLOBAL float *state, GLOBAL float *RESTRICT out,
    uint rows, uint sequences, uint table_blocks, uint logit_rows, uint columns, uint pitch, uint from, uint before,
    uint after, uint taps, uint silu, uint has_biases, uint slots, uint mode
) {
    BEGIN();
    uint row = GROUP(0), column = GROUP(1) * ITEMS + ITEM, used = count(params, 0, rows);
    if (row >= used || column >= columns) return;
    Lists at = lists(params, rows, logit_rows);
    uint2 slot = slots_of(at, row, sequences, table_blocks);
    uint sequence = at.row_sequences[row], run = 0;
    while (run + 1 < taps && run < row && at.row_sequences[row - run - 1] == sequence) run++;
    bool has_state = at.positions[row] > run && slot.x < slots;
    size_t size = (size_t)(taps - 1) * columns;
    const GLOBAL float *old = state + (has_state ? slot.x * size : 0) + column;
    const GLOBAL float *own = x + (size_t)row * pitch + column;
    if (mode != ONLY_STATES) {
        float sum = has_biases ? weights[(size_t)columns * taps + column] : 0.0f;
        for (uint t = 0; t < taps; t++) {
            float value = input_of(own, old, has_state, taps - 1 - t, run, pitch, columns, taps, from, before);
            sum = fma(weights[(size_t)column * taps + t], value, sum);
        }
        if (silu) sum = sum / (1.0f + exp(-sum));
        if (after != NONE) sum *= own[after];
        out[(size_t)row * columns + column] = sum;
    }
    bool is_last = row + 1 == used || at.row_sequences[row + 1] != sequence;
    if (mode == ONLY_ROWS || !is_last || slot.y >= slots) return;
    // A step reads only what later steps write, if both slots are the same.
    GLOBAL float *to = state + slot.y * size + column;
    for (uint t = 0; t + 1 < taps; t++) {
        to[(size_t)t * columns] = input_of(own, old, has_state, taps - 2 - t, run, pitch, columns, taps, from, before);
    }
}
