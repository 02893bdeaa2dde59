// Emulates AMD's matrix instructions in OpenCL C: results and register layouts follow the ISA documents. A
// wave is a run of consecutive work items. All of them must reach the call, and so must all waves of the
// group. WEIGHTS_BF16 selects the type of the values.
//
// Each lane publishes its registers in local memory, as floats.

// LLVM 15, which PoCL uses, crashes when it inlines these functions in a later pass.
#define INLINED static inline __attribute__((always_inline))
// Maximum number of values of one matrix per lane.
#define SHOWN 16
#define FRAGMENT_SPACE() __local float fragment_space[ITEMS * 2 * SHOWN]

INLINED float fragment_value(uint bits, int is_bf16) {
    if (is_bf16) return as_float(bits << 16);
    ushort half_bits = (ushort)bits;
    return vload_half(0, (const __private half *)&half_bits);
}

// Publishes `count` values of each matrix, packed two to a word.
INLINED void show(__local float *space, const __private uint *a, const __private uint *b, uint count, int is_bf16) {
    __local float *own = space + get_local_id(0) * 2 * SHOWN;
    for (uint i = 0; i < count; i++) {
        own[i] = fragment_value(a[i / 2] >> i % 2 * 16 & 0xffffu, is_bf16);
        own[SHOWN + i] = fragment_value(b[i / 2] >> i % 2 * 16 & 0xffffu, is_bf16);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// v_mfma_f32_32x32x8: register i of lane l has row l % 32 and value l / 32 · 4 + i of either matrix; float i
// of the result is in column l % 32 and in row i / 4 · 8 + l / 32 · 4 + i % 4.
INLINED void mfma_32x32x8(__local float *space, __private float *d, const __private uint *a, const __private uint *b, int is_bf16) {
    show(space, a, b, 4, is_bf16);
    uint lane = get_local_id(0) % 64, first = get_local_id(0) - lane, column = lane % 32;
    for (uint i = 0; i < 16; i++) {
        uint row = i / 4 * 8 + lane / 32 * 4 + i % 4;
        for (uint k = 0; k < 8; k++) {
            const __local float *left = space + (first + k / 4 * 32 + row) * 2 * SHOWN;
            const __local float *right = space + (first + k / 4 * 32 + column) * 2 * SHOWN + SHOWN;
            d[i] = fma(left[k % 4], right[k % 4], d[i]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// v_wmma_f32_16x16x16 of RDNA 3: lane l has row l % 16 of either matrix, and lanes 16 to 31 repeat lanes 0 to
// 15; float i of the result is in column l % 16 and in row 2 · i + l / 16. Here each half of the wave reads
// only its own copy.
INLINED void wmma_of_rdna3(__local float *space, __private float *d, const __private uint *a, const __private uint *b, int is_bf16) {
    show(space, a, b, 16, is_bf16);
    uint lane = get_local_id(0) % 32, first = get_local_id(0) - lane % 16;
    for (uint i = 0; i < 8; i++) {
        const __local float *left = space + (first + 2 * i + lane / 16) * 2 * SHOWN;
        const __local float *right = space + (first + lane % 16) * 2 * SHOWN + SHOWN;
        for (uint k = 0; k < 16; k++) d[i] = fma(left[k], right[k], d[i]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// v_wmma_f32_16x16x16 of RDNA 4: register i of lane l has row l % 16 and value l / 16 · 8 + i of either
// matrix; float i of the result is in column l % 16 and in row l / 16 · 8 + i.
INLINED void wmma_of_rdna4(__local float *space, __private float *d, const __private uint *a, const __private uint *b, int is_bf16) {
    show(space, a, b, 8, is_bf16);
    uint lane = get_local_id(0) % 32, first = get_local_id(0) - lane;
    for (uint i = 0; i < 8; i++) {
        uint row = lane / 16 * 8 + i;
        for (uint k = 0; k < 16; k++) {
            const __local float *left = space + (first + k / 8 * 16 + row) * 2 * SHOWN;
            const __local float *right = space + (first + k / 8 * 16 + lane % 16) * 2 * SHOWN + SHOWN;
            d[i] = fma(left[k % 8], right[k % 8], d[i]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define mfma(d, a, b) mfma_32x32x8(fragment_space, d, a, b, WEIGHTS_BF16)
#if defined(__GFX11__)
#define wmma(d, a, b) wmma_of_rdna3(fragment_space, d, a, b, WEIGHTS_BF16)
#else
#define wmma(d, a, b) wmma_of_rdna4(fragment_space, d, a, b, WEIGHTS_BF16)
#endif
