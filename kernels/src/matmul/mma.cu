// The product for many rows on compute capability 8.0: a group takes 128 rows of x and 128 rows of weights, each of its
// eight warps 64 × 32 of them (`mma`), while copies of what comes next are under way.

#define ROWS 128
#define COLUMNS 128
#define STAGES 3
#define STAGE_BYTES ((ROWS + COLUMNS) * TILE_ROW)

// Starts the copies of a tile of 128 rows of 64 values.
FN void copy_tile(uint to, const GLOBAL ushort *from, uint last, uint pitch) {
    uint row = threadIdx.x / 8, piece = threadIdx.x % 8;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        copy16(to + piece_of(row + i * 32, piece), from + (size_t)min(row + i * 32, last) * pitch + piece * 8, 16);
    }
}

KERNEL(256) matmul_mma(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern __shared__ uchar dynamic[];
    uint base = (local_address(dynamic) + 127) & ~127u;
    BEGIN();
    uint used = count(params, word, rows), m0 = blockIdx.x * ROWS, n0 = blockIdx.y * COLUMNS;
    if (m0 >= used) return;
    uint pitch = pitch_of(k), steps = pitch / TILE_K;
    const GLOBAL ushort *from_x = x + (size_t)m0 * pitch, *from_w = weights + (size_t)n0 * pitch;
    uint last_row = used - 1 - m0, last_column = n - 1 - n0;
    uint lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Where this thread's rows of fragments are: of x, and of weights.
    uint row = warp / 4 * 64 + lane % 16, column = warp % 4 * 32 + lane / 16 * 8 + lane % 8;
    float d[4][16];
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        #pragma unroll
        for (uint j = 0; j < 16; j++) d[i][j] = 0.0f;
    }
    for (uint s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            copy_tile(base + s * STAGE_BYTES, from_x + s * TILE_K, last_row, pitch);
            copy_tile(base + s * STAGE_BYTES + ROWS * TILE_ROW, from_w + s * TILE_K, last_column, pitch);
        }
        end_copies();
    }
    for (uint step = 0; step < steps; step++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        uint next = step + STAGES - 1;
        if (next < steps) {
            uint to = base + next % STAGES * STAGE_BYTES;
            copy_tile(to, from_x + next * TILE_K, last_row, pitch);
            copy_tile(to + ROWS * TILE_ROW, from_w + next * TILE_K, last_column, pitch);
        }
        end_copies();
        uint at = base + step % STAGES * STAGE_BYTES;
        #pragma unroll
        for (uint i = 0; i < TILE_K / 16; i++) {
            uint a[4][4], b[2][4];
            #pragma unroll
            for (uint j = 0; j < 4; j++) {
                load_matrices(a[j], at + piece_of(row + j * 16, i * 2 + lane / 16));
#if WEIGHTS_BF16
                #pragma unroll
                for (uint e = 0; e < 4; e++) a[j][e] = as_bf16(a[j][e]);
#endif
            }
            #pragma unroll
            for (uint j = 0; j < 2; j++) {
                load_matrices(b[j], at + ROWS * TILE_ROW + piece_of(column + j * 16, i * 2 + lane / 8 % 2));
            }
            #pragma unroll
            for (uint j = 0; j < 4; j++) {
                #pragma unroll
                for (uint c = 0; c < 4; c++) {
                    MULTIPLY(d[j] + c * 4, a[j], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
                }
            }
        }
    }
    Output out = {y, used, n, stride, accumulate != 0, has_whole_pieces(y, n, stride)};
    #pragma unroll
    for (uint j = 0; j < 4; j++) {
        write_fragments<2>(out, d[j], m0 + warp / 4 * 64 + j * 16, n0 + warp % 4 * 32);
    }
}
