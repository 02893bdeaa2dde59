// The product for few rows, on compute capability 8.0: as fast as weights come from memory. A group takes 32 rows of
// weights and up to TOKENS rows of x; its warps share the columns. Nothing goes through local memory: threads read 16 bytes
// of a row at once, and as both factors' columns are taken in the same order, any order is right.

#define TOKENS 32
#define WARPS 8
#define WEIGHT_ROWS 32
// Floats from one row of partial sums to the next.
#define SUM_ROW 36

FN uint4 read16(const GLOBAL ushort *from) { return *(const GLOBAL uint4 *)from; }

KERNEL(32 * WARPS) matmul_few(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern __shared__ float sums[]; // [warps][tokens][weight rows]
    BEGIN();
    uint used = count(params, word, rows), n0 = blockIdx.x * WEIGHT_ROWS, m0 = blockIdx.y * TOKENS;
    if (m0 >= used) return;
    uint lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint pitch = pitch_of(k), steps = pitch / 32;
    const GLOBAL ushort *from_w[4], *from_x[TOKENS / 8];
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        from_w[i] = weights + (size_t)min(n0 + i * 8 + lane / 4, n - 1) * pitch + lane % 4 * 8;
    }
    #pragma unroll
    for (uint i = 0; i < TOKENS / 8; i++) {
        from_x[i] = x + (size_t)min(m0 + i * 8 + lane / 4, used - 1) * pitch + lane % 4 * 8;
    }
    float d[2][TOKENS / 8][4];
    #pragma unroll
    for (uint i = 0; i < 2 * TOKENS / 8 * 4; i++) d[0][0][i] = 0.0f;
    #pragma unroll 4
    for (uint step = warp; step < steps; step += WARPS) {
        uint4 w[4];
        #pragma unroll
        for (uint i = 0; i < 4; i++) w[i] = read16(from_w[i] + step * 32);
        #pragma unroll
        for (uint t = 0; t < TOKENS / 8; t++) {
            uint4 b = read16(from_x[t] + step * 32);
#if WEIGHTS_BF16
            b = make_uint4(as_bf16(b.x), as_bf16(b.y), as_bf16(b.z), as_bf16(b.w));
#endif
            #pragma unroll
            for (uint i = 0; i < 2; i++) {
                uint4 top = w[i * 2], low = w[i * 2 + 1];
                uint first[4] = {top.x, low.x, top.y, low.y}, second[4] = {top.z, low.z, top.w, low.w};
                MULTIPLY(d[i][t], first, b.x, b.y);
                MULTIPLY(d[i][t], second, b.z, b.w);
            }
        }
    }
    float *mine = sums + warp * TOKENS * SUM_ROW;
    #pragma unroll
    for (uint i = 0; i < 2; i++) {
        #pragma unroll
        for (uint t = 0; t < TOKENS / 8; t++) {
            #pragma unroll
            for (uint e = 0; e < 4; e++) {
                mine[(t * 8 + lane % 4 * 2 + e % 2) * SUM_ROW + i * 16 + e / 2 * 8 + lane / 4] = d[i][t][e];
            }
        }
    }
    __syncthreads();
    for (uint i = warp; i < TOKENS; i += WARPS) {
        float sum = 0.0f;
        #pragma unroll
        for (uint w = 0; w < WARPS; w++) sum += sums[(w * TOKENS + i) * SUM_ROW + lane];
        if (m0 + i < used && n0 + lane < n) {
            write_one(y + (size_t)(m0 + i) * stride + n0 + lane, sum, accumulate != 0);
        }
    }
}
