// Rows of a table of weights: one group a row, each item takes quads of its columns.

KERNEL(ITEMS) embed(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT table, GLOBAL float *RESTRICT out,
    uint rows, uint vocabulary, uint width, uint first
) {
    BEGIN();
    uint row = GROUP(0);
    if (row >= count(params, 0, rows)) return;
    uint token = params[4 + row] - first;
    GLOBAL float *to = out + (size_t)row * width;
    if (token >= vocabulary) {
        if (first != 0) return;
        for (uint i = ITEM; i < width; i += ITEMS) to[i] = 0.0f;
        return;
    }
    const GLOBAL uchar *group = table + (size_t)(token / 16) * group_bytes(width);
    uint part = token / 4 % 4, lane = token % 4;
    for (uint quad = ITEM; quad < width / 4; quad += ITEMS) {
        float values[4][4];
        quad_values(group, width, quad / 8, quad % 8, part, values);
        for (uint i = 0; i < 4; i++) {
            float first = lane & 1 ? values[1][i] : values[0][i];
            float last = lane & 1 ? values[3][i] : values[2][i];
            to[quad * 4 + i] = lane & 2 ? last : first;
        }
    }
}
