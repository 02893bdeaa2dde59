// Types without blocks in `Rows16`, as the other sources read them: for each column 16 values.
//
// A `part` is four of a group's 16 rows, a `quad` four consecutive columns of a block of 32.

// Bytes of a column.
#define COLUMN_BYTES (16 / LANES * 16)

FN uint group_bytes(uint columns) { return columns * COLUMN_BYTES; }

// Values of a quad: out[row][column].
FN void quad_values(const GLOBAL uchar *group, uint columns, uint block, uint quad, uint part, float out[4][4]) {
    float values[4];
    for (uint i = 0; i < 4; i++) {
        four_values(group + (block * 32 + quad * 4 + i) * COLUMN_BYTES + part * (COLUMN_BYTES / 4), values);
        for (uint r = 0; r < 4; r++) out[r][i] = values[r];
    }
}
