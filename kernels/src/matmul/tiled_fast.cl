// Products with int8 activations for many rows of x: a group computes 64 rows of x by 64 rows of weights, two blocks of
// 32 columns at a time through local memory; an item computes 4 by 8 of them.

// Words from one quad of a tile to the next.
#define QUAD 68

KERNEL(ITEMS) matmul_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED uint w_tile[16 * QUAD] ALIGNED;
    SHARED uint x_tile[16 * QUAD] ALIGNED;
    SHARED float w_scales[2 * 64 * (1 + UNEQUAL) * (1 + MINIMA)];
    SHARED float x_scales[2 * 64];
    SHARED int x_sums[2 * 2 * 64];
    uint used = count(params, word, rows), first_row = GROUP(0) * 64;
    // The item's weights are 4 from `lane` and 4 from `lane` + 32, its rows of x 4 from `line`.
    uint lane = ITEM % 8 * 4, line = ITEM / 8 * 4;
    float acc[4][8];
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        #pragma unroll
        for (uint j = 0; j < 8; j++) acc[i][j] = 0.0f;
    }
    // Groups beyond the count have no columns.
    uint groups = (n + 15) / 16, blocks = k / 32, end = first_row < used ? blocks : 0;
    for (uint first = 0; first < end; first += 2) {
        uint step = min(2u, blocks - first);
        // Weights: 4 groups × 8 quads × 4 parts of each block.
        for (uint b = 0; b < step; b++) {
            uint part = ITEM % 4, quad = ITEM / 4 % 8, tile_group = ITEM / 32;
            uint group = min(GROUP(1) * 4 + tile_group, groups - 1);
            const GLOBAL uchar *from = weights + (size_t)group * group_bytes(k);
            uint words[4];
            quad_words(from, blocks, first + b, quad, part, words);
            *(LOCAL uint4 *)(w_tile + (b * 8 + quad) * QUAD + tile_group * 16 + part * 4) =
                UINT4(words[0], words[1], words[2], words[3]);
            if (quad == 0) {
                Scales scales;
                block_scales(from, blocks, first + b, part, &scales);
                LOCAL float *to = w_scales + b * 64 + tile_group * 16 + part * 4;
                #pragma unroll
                for (uint r = 0; r < 4; r++) {
                    to[r] = scales.first[r];
                    if (UNEQUAL) to[128 + r] = scales.last[r];
                    if (MINIMA) to[128 * (1 + UNEQUAL) + r] = scales.minimum[r];
                    if (UNEQUAL && MINIMA) to[384 + r] = scales.last_minimum[r];
                }
            }
        }
        // x: 64 rows × 2 blocks; rows beyond the count are computed from the last and not written.
        {
            uint row = ITEM / 2, b = ITEM % 2, at = min(first + b, blocks - 1);
            const GLOBAL uchar *from = x + (size_t)min(first_row + row, used - 1) * row_bytes(k);
            uint4 low = LOAD4(from + at * 32), high = LOAD4(from + at * 32 + 16);
            LOCAL uint *to = x_tile + b * 8 * QUAD + row;
            to[0] = low.x;
            to[QUAD] = low.y;
            to[2 * QUAD] = low.z;
            to[3 * QUAD] = low.w;
            to[4 * QUAD] = high.x;
            to[5 * QUAD] = high.y;
            to[6 * QUAD] = high.z;
            to[7 * QUAD] = high.w;
            x_scales[b * 64 + row] = LOADF1(from + scales_offset(k) + at * 4);
            uint2 sums = sums_of(from, k, at);
            x_sums[b * 128 + row] = (int)sums.x;
            x_sums[b * 128 + 64 + row] = (int)sums.y;
        }
        BARRIER();
        if (first_row + line < used) {
            for (uint b = 0; b < step; b++) {
                int first_dots[4][8], last_dots[4][8];
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    #pragma unroll
                    for (uint j = 0; j < 8; j++) first_dots[i][j] = last_dots[i][j] = 0;
                }
                #pragma unroll
                for (uint quad = 0; quad < 8; quad++) {
                    const LOCAL uint *w_at = w_tile + (b * 8 + quad) * QUAD + lane;
                    uint4 w_low = LOAD_LOCAL4(w_at), w_high = LOAD_LOCAL4(w_at + 32);
                    uint4 from = LOAD_LOCAL4(x_tile + (b * 8 + quad) * QUAD + line);
                    uint w[8] = {w_low.x, w_low.y, w_low.z, w_low.w, w_high.x, w_high.y, w_high.z, w_high.w};
                    uint f[4] = {from.x, from.y, from.z, from.w};
                    #pragma unroll
                    for (uint i = 0; i < 4; i++) {
                        #pragma unroll
                        for (uint j = 0; j < 8; j++) {
                            if (UNEQUAL && quad >= 4) last_dots[i][j] = dot4(w[j], f[i], last_dots[i][j]);
                            else first_dots[i][j] = dot4(w[j], f[i], first_dots[i][j]);
                        }
                    }
                }
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    float scale = x_scales[b * 64 + line + i];
                    int first_sum = x_sums[b * 128 + line + i], last_sum = x_sums[b * 128 + 64 + line + i];
                    #pragma unroll
                    for (uint j = 0; j < 8; j++) {
                        const LOCAL float *scales = w_scales + b * 64 + lane + j / 4 * 32 + j % 4;
                        acc[i][j] = add_block(
                            first_dots[i][j], last_dots[i][j], first_sum, last_sum, scale, scales[0],
                            UNEQUAL ? scales[128] : 0.0f, MINIMA ? scales[128 * (1 + UNEQUAL)] : 0.0f,
                            UNEQUAL && MINIMA ? scales[384] : 0.0f, acc[i][j]
                        );
                    }
                }
            }
        }
        BARRIER();
    }
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint row = first_row + line + i;
        if (row >= used) continue;
        #pragma unroll
        for (uint j = 0; j < 8; j++) {
            uint column = GROUP(1) * 64 + lane + j / 4 * 32 + j % 4;
            if (column < n) {
                GLOBAL float *to = y + (size_t)row * stride + column;
                *to = accumulate ? *to + acc[i][j] : acc[i][j];
            }
        }
    }
}
