// Types whose values stand column by column, as the other sources read them.
//
// A `part` is four of a group's 16 rows, a `quad` four consecutive columns of a block of 32.

#define PLAIN 1

// Values of a quad: out[row][column].
FN void quad_values(const GLOBAL uchar *group, uint columns, uint block, uint quad, uint part, float out[4][4]) {
    float values[4];
    for (uint i = 0; i < 4; i++) {
        column_values(group, block * 32 + quad * 4 + i, part, values);
        for (uint r = 0; r < 4; r++) out[r][i] = values[r];
    }
}
