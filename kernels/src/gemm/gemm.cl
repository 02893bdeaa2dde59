// C = alpha · op(A) · op(B) + beta · C: a group computes a tile of one C. Its lines are rows of op(A) and columns of op(B).

KERNEL(ITEMS) gemm(
    const GLOBAL ELEMENT *RESTRICT a, const GLOBAL ELEMENT *RESTRICT b, GLOBAL float *RESTRICT c, uint m, uint n, uint k,
    uint transpose_a, uint transpose_b, uint lda, uint ldb, uint ldc, uint batch, uint stride_a, uint stride_b,
    uint stride_c, uint alpha, uint beta
) {
    BEGIN();
    SHARED float a_tile[TILE_SPACE] ALIGNED;
    SHARED float b_tile[TILE_SPACE] ALIGNED;
    uint across = (n + TILE - 1) / TILE, tiles = (m + TILE - 1) / TILE * across, tile = GROUP(0) % tiles;
    uint first_row = tile / across * TILE, first_column = tile % across * TILE;
    size_t matrix = GROUP(0) / tiles;
    uint depth = AS_FLOAT(alpha) == 0.0f ? 0 : k;
    float sums[4][8];
    clear_sums(sums);
    for (uint first = 0; first < depth; first += STEP) {
        fill_tile(
            a_tile, a + matrix * stride_a, first_row, m, transpose_a ? 1 : lda, first, depth, transpose_a ? lda : 1
        );
        fill_tile(
            b_tile, b + matrix * stride_b, first_column, n, transpose_b ? ldb : 1, first, depth, transpose_b ? 1 : ldb
        );
        BARRIER();
        multiply(a_tile, b_tile, sums);
        BARRIER();
    }
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint row = first_row + LINE + i;
        #pragma unroll
        for (uint j = 0; j < 8; j++) {
            uint column = first_column + LANE_OF(j);
            if (row >= m || column >= n) continue;
            GLOBAL float *to = c + matrix * stride_c + (size_t)row * ldc + column;
            float product = AS_FLOAT(alpha) * sums[i][j];
            *to = AS_FLOAT(beta) == 0.0f ? product : fma(AS_FLOAT(beta), *to, product);
        }
    }
}
