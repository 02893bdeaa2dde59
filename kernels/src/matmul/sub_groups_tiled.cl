// Products with f32 or f16 activations for many rows of x, in sub-groups: a group computes 64 rows of x by 64
// rows of weights, 64 columns at a time. A sub-group computes 16 by 16 of them. Each of its items has one row
// of weights, from local memory, and one row of x, which it broadcasts.

KERNEL(ITEMS) matmul_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL INPUT *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED VALUE w_tile[64 * 64];
    uint used = count(params, word, rows);
    uint line = GROUP(0) * 64 + SUB_GROUP / 4 * WIDTH, lane = SUB_GROUP % 4 * WIDTH + LANE;
    // Rows beyond the count are computed from the last and not written.
    const GLOBAL INPUT *from_x = x + (size_t)min(line + LANE, used - 1) * ROW_LENGTH(k);
    float acc[WIDTH];
    #pragma unroll
    for (uint r = 0; r < WIDTH; r++) acc[r] = 0.0f;
    // Groups beyond the count have no columns.
    uint groups = (n + 15) / 16, end = GROUP(0) * 64 < used ? k : 0;
    // Weights: 2 blocks × 4 groups × 8 quads × 4 parts.
    uint part = ITEM % 4, quad = ITEM / 4 % 8, tile_group = ITEM / 32 % 4, own = ITEM / 128;
    uint group = min(GROUP(1) * 4 + tile_group, groups - 1);
    const GLOBAL uchar *from_w = weights + (size_t)group * group_bytes(k);
    for (uint first = 0; first < end; first += 64) {
        if (first + own * 32 < k) {
            float values[4][4];
            quad_values(from_w, k, first / 32 + own, quad, part, values);
            LOCAL VALUE *to = w_tile + (own * 32 + quad * 4) * 64 + tile_group * 16 + part * 4;
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                #pragma unroll
                for (uint r = 0; r < 4; r++) to[i * 64 + r] = tile_value(values[r][i]);
            }
        }
        BARRIER();
        for (uint c = 0; c < min(64u, k - first) && line < used; c += WIDTH) {
            add_columns(from_x, first + c, w_tile + c * 64 + lane, acc);
        }
        BARRIER();
    }
    uint column = GROUP(1) * 64 + lane;
    #pragma unroll
    for (uint r = 0; r < WIDTH; r++) {
        if (line + r < used && column < n) {
            GLOBAL float *to = y + (size_t)(line + r) * stride + column;
            *to = accumulate ? *to + acc[r] : acc[r];
        }
    }
}
