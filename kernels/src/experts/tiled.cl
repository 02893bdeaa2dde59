// Products of many rows of x with the weights of their experts. A group takes 64 weight rows of one expert, finds the
// assignments to it, and computes 64 of these at a time, as the tiled product of plain matrices does.

// Floats from one column of a tile to the next.
#define COLUMN 68
// Most rows of x whose assignments are found at a time. A row has at most one with the expert.
#define LIST 2048
#define NONE 0xffffffffu

KERNEL(ITEMS) expert_matmul_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    const GLOBAL uint *RESTRICT route, GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint first_row,
    uint expert_rows, uint piece, uint used, uint x_slots, uint column, uint stride, uint is_fixed, uint x_pitch,
    uint x_column, uint y_gap
) {
    BEGIN();
    SHARED float w_tile[32 * COLUMN] ALIGNED;
    SHARED float x_tile[32 * COLUMN] ALIGNED;
    SHARED uint found[ITEMS];
    SHARED uint list[LIST];
    uint in_use = count(params, word, rows), expert = first_row / expert_rows + GROUP(1);
    // The first weight row of the tile, of all experts. It may belong to the expert before.
    uint expert_begin = expert * expert_rows, tile_begin = expert_begin / 16 * 16 + GROUP(0) * 64;
    uint groups = (n + 15) / 16;
    uint lane = ITEM % 8 * 4, line = ITEM / 8 * 4;
    // The item's place among the weights: 4 groups × 8 quads × 4 parts. Groups that are not bound are replaced, and not written.
    uint part = ITEM % 4, quad = ITEM / 4 % 8, tile_group = ITEM / 32;
    uint group = tile_begin / 16 + tile_group - first_row / 16;
    const GLOBAL uchar *lines = weights + (size_t)(group < groups ? group : 0) * group_bytes(k);
    // A tile ends before the bound rows, or starts after the expert's.
    bool is_empty = tile_begin + 64 <= first_row || tile_begin >= first_row + n || tile_begin >= expert_begin + expert_rows;
    for (uint begin = 0; begin < (is_empty ? 0 : in_use); begin += LIST) {
        uint length = 0;
        for (uint next = begin; next < min(begin + LIST, in_use); next += ITEMS) {
            uint row = next + ITEM, own = NONE;
            // A fixed route has each expert in its own slot.
            for (uint slot = is_fixed ? expert : 0; slot < (is_fixed ? expert + 1 : used) && row < in_use; slot++) {
                if (is_fixed || route[(size_t)row * 2 * used + slot] == expert) own = row * used + slot;
            }
            found[ITEM] = own;
            BARRIER();
            for (uint i = 0; i < ITEMS; i++) {
                if (found[i] == NONE) continue;
                if (ITEM == 0) list[length] = found[i];
                length++;
            }
            BARRIER();
        }
        for (uint first = 0; first < length; first += 64) {
            uint tile = min(64u, length - first);
            float acc[4][8];
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                #pragma unroll
                for (uint j = 0; j < 8; j++) acc[i][j] = 0.0f;
            }
            for (uint block = 0; block < k / 32; block++) {
                float values[4][4];
                quad_values(lines, k, block, quad, part, values);
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    *(LOCAL float4 *)(w_tile + (quad * 4 + i) * COLUMN + tile_group * 16 + part * 4) =
                        FLOAT4(values[0][i], values[1][i], values[2][i], values[3][i]);
                }
                // x: 64 rows × 8 quads; beyond the tile's assignments there is nothing to load.
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    uint at = ITEM / 8 + i * 16, c = ITEM % 8 * 4;
                    if (at >= tile) continue;
                    uint assignment = list[first + at], slot = x_slots == 1 ? 0 : assignment % used;
                    const GLOBAL float *of_row = x + ((size_t)(assignment / used) * x_slots + slot) * x_pitch + x_column;
                    float4 from = LOADF4(of_row + block * 32 + c);
                    x_tile[c * COLUMN + at] = from.x;
                    x_tile[(c + 1) * COLUMN + at] = from.y;
                    x_tile[(c + 2) * COLUMN + at] = from.z;
                    x_tile[(c + 3) * COLUMN + at] = from.w;
                }
                BARRIER();
                if (line < tile) {
                    #pragma unroll 8
                    for (uint c = 0; c < 32; c++) {
                        float4 a = LOAD_LOCALF4(w_tile + c * COLUMN + lane);
                        float4 b = LOAD_LOCALF4(w_tile + c * COLUMN + 32 + lane);
                        float4 from = LOAD_LOCALF4(x_tile + c * COLUMN + line);
                        float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, f[4] = {from.x, from.y, from.z, from.w};
                        #pragma unroll
                        for (uint i = 0; i < 4; i++) {
                            #pragma unroll
                            for (uint j = 0; j < 8; j++) acc[i][j] = fma(w[j], f[i], acc[i][j]);
                        }
                    }
                }
                BARRIER();
            }
            #pragma unroll
            for (uint i = 0; i < 4; i++) {
                if (line + i >= tile) continue;
                uint assignment = list[first + line + i], row = assignment / used, slot = assignment % used;
                GLOBAL float *to = y + (size_t)row * stride + column + slot * y_gap;
                #pragma unroll
                for (uint j = 0; j < 8; j++) {
                    uint of_all = tile_begin + lane + j / 4 * 32 + j % 4, own = of_all - expert_begin;
                    // Rows of other experts, and rows that are not bound, are beyond the limits.
                    if (own >= expert_rows || of_all - first_row >= n) continue;
                    to[(own / piece * used + slot) * piece + own % piece] = acc[i][j];
                }
            }
        }
        BARRIER();
    }
}
