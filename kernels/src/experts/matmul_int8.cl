// Products of int8 activations and the quantised weights of the experts to which rows are assigned: a group takes 16 rows of
// weights of one assignment. An item takes four of them and half the quads of some blocks of 32 columns.

// Items that share four rows of weights, and local memory from the sums of one row to those of the next.
#define SHARING (ITEMS / 4)
#define STRIDE (SHARING + 1)
// Blocks whose loads are under way together: what hides the memory's latency.
#define BATCH 4
#define BLOCKS_AT_ONCE (ITEMS / 8)

KERNEL(ITEMS) expert_matmul_int8(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL uchar *RESTRICT x,
    const GLOBAL uint *RESTRICT route, GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint first_row,
    uint expert_rows, uint piece, uint used, uint x_slots, uint column, uint stride, uint is_fixed, uint x_pitch,
    uint x_column, uint y_gap
) {
    BEGIN();
    SHARED float partial[16 * STRIDE];
    uint row = GROUP(1) / used, slot = GROUP(1) % used, part = ITEM % 4, pair = ITEM / 4 % 2 * 2;
    uint is_used = row < count(params, word, rows);
    uint expert = is_fixed ? slot : is_used ? route[(size_t)row * 2 * used + slot] : 0;
    // Group of weight rows, of all experts and of those that are bound. Beyond these, there is nothing to compute.
    uint group = expert * expert_rows / 16 + GROUP(0), bound = group - first_row / 16;
    uint blocks = is_used && bound < (n + 15) / 16 ? k / 32 : 0;
    const GLOBAL uchar *lines = weights + (size_t)bound * group_bytes(k);
    uint width = x_slots * k, own = x_slots == 1 ? 0 : slot * (k / 32);
    const GLOBAL uchar *from = x + (size_t)row * row_bytes(width);
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint first = ITEM / 8; first < blocks; first += BATCH * BLOCKS_AT_ONCE) {
        // Quads `pair`, `pair` + 1 and those 16 columns on.
        uint words[BATCH][4][4];
        Scales scales[BATCH];
        #pragma unroll
        for (uint b = 0; b < BATCH; b++) {
            uint block = min(first + b * BLOCKS_AT_ONCE, blocks - 1);
            #pragma unroll
            for (uint i = 0; i < 4; i++) quad_words(lines, k / 32, block, pair + i % 2 + i / 2 * 4, part, words[b][i]);
            block_scales(lines, k / 32, block, part, &scales[b]);
        }
        #pragma unroll
        for (uint b = 0; b < BATCH; b++) {
            bool exists = first + b * BLOCKS_AT_ONCE < blocks;
            uint block = own + min(first + b * BLOCKS_AT_ONCE, blocks - 1);
            uint2 low = LOAD2(from + block * 32 + pair * 4), high = LOAD2(from + block * 32 + 16 + pair * 4);
            float scale = exists ? LOADF1(from + scales_offset(width) + block * 4) : 0.0f;
            // The sums are of all quads: one of the two items takes them.
            uint2 sums = UINT2(0, 0);
            if ((OFFSET || MINIMA) && pair == 0) sums = sums_of(from, width, block);
            #pragma unroll
            for (uint r = 0; r < 4; r++) {
                acc[r] = add_block(
                    dot4(words[b][0][r], low.x, dot4(words[b][1][r], low.y, 0)),
                    dot4(words[b][2][r], high.x, dot4(words[b][3][r], high.y, 0)), (int)sums.x, (int)sums.y, scale,
                    scales[b].first[r], scales[b].last[r], scales[b].minimum[r],
                    UNEQUAL && MINIMA ? scales[b].last_minimum[r] : 0.0f, acc[r]
                );
            }
        }
    }
    for (uint r = 0; r < 4; r++) partial[(part * 4 + r) * STRIDE + ITEM / 4] = acc[r];
    BARRIER();
    uint line = group * 16 + ITEM - expert * expert_rows;
    if (ITEM < 16 && blocks > 0 && line < expert_rows) {
        float sum = 0.0f;
        for (uint i = 0; i < SHARING; i++) sum += partial[ITEM * STRIDE + i];
        y[(size_t)row * stride + column + slot * y_gap + (line / piece * used + slot) * piece + line % piece] = sum;
    }
}
