// Products with the weights of the experts to which rows are assigned: a group takes 16 rows of weights of one assignment.
// Its items share the columns; their sums are brought together in local memory.

// Items that share a row of weights, and local memory from the sums of one row to those of the next.
#define SHARING (ITEMS / 4)
#define STRIDE (SHARING + 1)

KERNEL(ITEMS) expert_matmul(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL float *RESTRICT x,
    const GLOBAL uint *RESTRICT route, GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint first_row,
    uint expert_rows, uint piece, uint used, uint x_slots, uint column, uint stride, uint is_fixed, uint x_pitch,
    uint x_column, uint y_gap
) {
    BEGIN();
    SHARED float partial[16 * STRIDE];
    uint row = GROUP(1) / used, slot = GROUP(1) % used, part = ITEM % 4;
    uint is_used = row < count(params, word, rows);
    uint expert = is_fixed ? slot : is_used ? route[(size_t)row * 2 * used + slot] : 0;
    // Group of weight rows, of all experts and of those that are bound. Beyond these, there is nothing to compute.
    uint group = expert * expert_rows / 16 + GROUP(0), bound = group - first_row / 16;
    uint quads = is_used && bound < (n + 15) / 16 ? k / 4 : 0;
    const GLOBAL uchar *lines = weights + (size_t)bound * group_bytes(k);
    const GLOBAL float *from = x + ((size_t)row * x_slots + (x_slots == 1 ? 0 : slot)) * x_pitch + x_column;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint quad = ITEM / 4; quad < quads; quad += SHARING) {
        float values[4][4];
        quad_values(lines, k, quad / 8, quad % 8, part, values);
        float4 factors = LOADF4(from + quad * 4);
        #pragma unroll
        for (uint r = 0; r < 4; r++) {
            float low = fma(values[r][1], factors.y, fma(values[r][0], factors.x, sums[r]));
            sums[r] = fma(values[r][3], factors.w, fma(values[r][2], factors.z, low));
        }
    }
    for (uint r = 0; r < 4; r++) partial[(part * 4 + r) * STRIDE + ITEM / 4] = sums[r];
    BARRIER();
    uint line = group * 16 + ITEM - expert * expert_rows;
    if (ITEM < 16 && quads > 0 && line < expert_rows) {
        float sum = 0.0f;
        for (uint i = 0; i < SHARING; i++) sum += partial[ITEM * STRIDE + i];
        y[(size_t)row * stride + column + slot * y_gap + (line / piece * used + slot) * piece + line % piece] = sum;
    }
}
