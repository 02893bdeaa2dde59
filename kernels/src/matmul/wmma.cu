// The product for many rows on compute capability 7.0: a group takes 64 rows of x and 64 rows of weights, each of its four
// warps 32 × 32 of them (`wmma`). Its matrix units know f16 alone: bf16 weights become f16, those beyond its range the
// largest of it.

#define SIDE 64
#define PITCH (TILE_K + 8)

// Products of 16 × 16 values: d += a · b.
FN void multiply_16(float *d, const uint *a, const uint *b) {
    asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
          "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
}

#define LOAD_FRAGMENT(kind, layout) \
    asm volatile("wmma.load." kind ".sync.aligned." layout ".m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, " \
        "[%8], %9;" : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]), "=r"(out[4]), "=r"(out[5]), \
        "=r"(out[6]), "=r"(out[7]) : "r"(local_address(from)), "r"(PITCH) : "memory")
FN void load_left(uint *out, const ushort *from) { LOAD_FRAGMENT("a", "row"); }
FN void load_right(uint *out, const ushort *from) { LOAD_FRAGMENT("b", "col"); }

FN void store_16(float *to, const float *d) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
        :: "r"(local_address(to)), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]),
        "f"(d[7]), "r"(SIDE) : "memory");
}

#if WEIGHTS_BF16
// Two bf16 values of a word as f16 values.
FN uint from_bf16(uint word) {
    float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
    return pack_f16(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}
#endif

KERNEL(128) matmul_wmma(
    const GLOBAL uint *RESTRICT params, const GLOBAL ushort *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    SHARED ushort tile_x[SIDE * PITCH] ALIGNED;
    SHARED ushort tile_w[SIDE * PITCH] ALIGNED;
    SHARED float tile_y[SIDE * SIDE] ALIGNED;
    BEGIN();
    uint used = count(params, word, rows), m0 = blockIdx.x * SIDE, n0 = blockIdx.y * SIDE;
    if (m0 >= used) return;
    uint pitch = pitch_of(k), warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    float d[2][2][8];
    #pragma unroll
    for (uint i = 0; i < 32; i++) d[0][0][i] = 0.0f;
    for (uint at = 0; at < pitch; at += TILE_K) {
        uint4 next_x[4], next_w[4];
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint r = threadIdx.x / 8 + i * 16, c = at + threadIdx.x % 8 * 8;
            next_x[i] = *(const GLOBAL uint4 *)(x + (size_t)min(m0 + r, used - 1) * pitch + c);
            next_w[i] = *(const GLOBAL uint4 *)(weights + (size_t)min(n0 + r, n - 1) * pitch + c);
        }
        __syncthreads();
        #pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint to = (threadIdx.x / 8 + i * 16) * PITCH + threadIdx.x % 8 * 8;
            uint4 w = next_w[i];
#if WEIGHTS_BF16
            w = make_uint4(from_bf16(w.x), from_bf16(w.y), from_bf16(w.z), from_bf16(w.w));
#endif
            *(uint4 *)(tile_x + to) = next_x[i];
            *(uint4 *)(tile_w + to) = w;
        }
        __syncthreads();
        #pragma unroll
        for (uint i = 0; i < TILE_K; i += 16) {
            uint a[2][8], b[2][8];
            #pragma unroll
            for (uint j = 0; j < 2; j++) {
                load_left(a[j], tile_x + (row + j * 16) * PITCH + i);
                load_right(b[j], tile_w + (column + j * 16) * PITCH + i);
            }
            #pragma unroll
            for (uint j = 0; j < 4; j++) multiply_16(d[j / 2][j % 2], a[j / 2], b[j % 2]);
        }
    }
    #pragma unroll
    for (uint j = 0; j < 4; j++) store_16(tile_y + (row + j / 2 * 16) * SIDE + column + j % 2 * 16, d[j / 2][j % 2]);
    __syncthreads();
    for (uint i = threadIdx.x; i < SIDE * SIDE; i += 128) {
        uint r = m0 + i / SIDE, c = n0 + i % SIDE;
        if (r < used && c < n) write_one(y + (size_t)r * stride + c, tile_y[i], accumulate != 0);
    }
}
