// Products with int8 activations for many rows of x, in sub-groups: a group computes 64 rows of x by 64 rows
// of weights, two blocks of 32 columns at a time. A sub-group computes 16 by 16 of them. Each of its items
// has one row of weights, from local memory, and one row of x, which it broadcasts.

KERNEL(ITEMS) matmul_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED uint w_tile[16 * 64] ALIGNED;
    SHARED float w_scales[2 * 64 * (1 + UNEQUAL) * (1 + MINIMA)];
    uint used = count(params, word, rows);
    uint line = GROUP(0) * 64 + SUB_GROUP / 4 * WIDTH, lane = SUB_GROUP % 4 * WIDTH + LANE;
    // Rows beyond the count are computed from the last and not written.
    const GLOBAL uchar *from_x = x + (size_t)min(line + LANE, used - 1) * row_bytes(k);
    float acc[WIDTH];
    #pragma unroll
    for (uint r = 0; r < WIDTH; r++) acc[r] = 0.0f;
    // Groups beyond the count have no columns.
    uint groups = (n + 15) / 16, blocks = k / 32, end = GROUP(0) * 64 < used ? blocks : 0;
    // Weights: 2 blocks × 4 groups × 8 quads × 4 parts.
    uint part = ITEM % 4, quad = ITEM / 4 % 8, tile_group = ITEM / 32 % 4, own = ITEM / 128;
    uint group = min(GROUP(1) * 4 + tile_group, groups - 1);
    const GLOBAL uchar *from_w = weights + (size_t)group * group_bytes(k);
    for (uint first = 0; first < end; first += 2) {
        if (first + own < blocks) {
            uint words[4], to = tile_group * 16 + part * 4;
            quad_words(from_w, blocks, first + own, quad, part, words);
            LOCAL uint *to_words = w_tile + (own * 8 + quad) * 64 + to;
            *(LOCAL uint4 *)to_words = UINT4(words[0], words[1], words[2], words[3]);
            if (quad == 0) {
                Scales scales;
                block_scales(from_w, blocks, first + own, part, &scales);
                LOCAL float *to_scales = w_scales + own * 64 + to;
                #pragma unroll
                for (uint r = 0; r < 4; r++) {
                    to_scales[r] = scales.first[r];
                    if (UNEQUAL) to_scales[128 + r] = scales.last[r];
                    if (MINIMA) to_scales[128 * (1 + UNEQUAL) + r] = scales.minimum[r];
                    if (UNEQUAL && MINIMA) to_scales[384 + r] = scales.last_minimum[r];
                }
            }
        }
        BARRIER();
        for (uint b = 0; b < min(2u, blocks - first) && line < used; b++) {
            uint at = first + b;
            uint4 low = LOAD4(from_x + at * 32), high = LOAD4(from_x + at * 32 + 16);
            uint words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float x_scale = LOADF1(from_x + scales_offset(k) + at * 4);
            uint2 x_sums = sums_of(from_x, k, at);
            int first_dots[WIDTH], last_dots[WIDTH];
            #pragma unroll
            for (uint r = 0; r < WIDTH; r++) first_dots[r] = last_dots[r] = 0;
            #pragma unroll
            for (uint q = 0; q < 8; q++) {
                uint w = w_tile[(b * 8 + q) * 64 + lane];
                #pragma unroll
                for (uint r = 0; r < WIDTH; r++) {
                    uint f = sub_group_broadcast(words[q], r);
                    if (UNEQUAL && q >= 4) last_dots[r] = dot4(w, f, last_dots[r]);
                    else first_dots[r] = dot4(w, f, first_dots[r]);
                }
            }
            const LOCAL float *scales = w_scales + b * 64 + lane;
            float scale = scales[0], last = UNEQUAL ? scales[128] : 0.0f;
            float minimum = MINIMA ? scales[128 * (1 + UNEQUAL)] : 0.0f;
            float last_minimum = UNEQUAL && MINIMA ? scales[384] : 0.0f;
            #pragma unroll
            for (uint r = 0; r < WIDTH; r++) {
                int first_sum = (int)sub_group_broadcast(x_sums.x, r);
                int last_sum = (int)sub_group_broadcast(x_sums.y, r);
                float from = sub_group_broadcast(x_scale, r);
                acc[r] = add_block(
                    first_dots[r], last_dots[r], first_sum, last_sum, from, scale, last, minimum, last_minimum, acc[r]
                );
            }
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
