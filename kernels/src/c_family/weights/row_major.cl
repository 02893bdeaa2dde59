// Types without blocks in `RowMajor`, as the other sources read them: rows of values, padded to a multiple of 64.
//
// A `part` is four of a group's 16 rows, a `quad` four consecutive columns of a block of 32.

#define VALUE_BYTES (16 / LANES)

FN uint pitch_bytes(uint columns) { return ((columns + 63) & ~63u) * VALUE_BYTES; }
FN uint group_bytes(uint columns) { return pitch_bytes(columns) * 16; }

// Values of a quad: out[row][column].
FN void quad_values(const GLOBAL uchar *group, uint columns, uint block, uint quad, uint part, float out[4][4]) {
    const GLOBAL uchar *from = group + (block * 32 + quad * 4) * VALUE_BYTES;
    for (uint r = 0; r < 4; r++) four_values(from + (size_t)(part * 4 + r) * pitch_bytes(columns), out[r]);
}
