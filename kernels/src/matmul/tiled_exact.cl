// Products with f32 or f16 activations for many rows of x: a group computes 64 rows of x by 64 rows of weights, 32 columns at
// a time through local memory; an item computes 4 by 8 of them.

// Floats from one column of a tile to the next.
#define COLUMN 68

KERNEL(ITEMS) matmul_tiled(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL INPUT *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    BEGIN();
    SHARED float w_tile[32 * COLUMN] ALIGNED;
    SHARED float x_tile[32 * COLUMN] ALIGNED;
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
    uint groups = (n + 15) / 16, blocks = first_row < used ? k / 32 : 0;
    for (uint block = 0; block < blocks; block++) {
        // Weights: 4 groups × 8 quads × 4 parts.
        uint part = ITEM % 4, quad = ITEM / 4 % 8, tile_group = ITEM / 32;
        uint group = min(GROUP(1) * 4 + tile_group, groups - 1);
        float values[4][4];
        quad_values(weights + (size_t)group * group_bytes(k), k, block, quad, part, values);
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            *(LOCAL float4 *)(w_tile + (quad * 4 + i) * COLUMN + tile_group * 16 + part * 4) =
                FLOAT4(values[0][i], values[1][i], values[2][i], values[3][i]);
        }
        // x: 64 rows × 8 quads; rows beyond the count are computed from the last and not written.
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint row = ITEM / 8 + i * 16, c = ITEM % 8 * 4;
            float4 from = four_of_row(x, min(first_row + row, used - 1), k, block * 32 + c);
            x_tile[c * COLUMN + row] = from.x;
            x_tile[(c + 1) * COLUMN + row] = from.y;
            x_tile[(c + 2) * COLUMN + row] = from.z;
            x_tile[(c + 3) * COLUMN + row] = from.w;
        }
        BARRIER();
        if (first_row + line < used) {
            #pragma unroll 8
            for (uint c = 0; c < 32; c++) {
                float4 a = LOAD_LOCALF4(w_tile + c * COLUMN + lane), b = LOAD_LOCALF4(w_tile + c * COLUMN + 32 + lane);
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
