// Instructions of NVIDIA's devices that the language has no words for: copies into local memory that nobody waits for,
// fragments of matrices, and products of them. From the PTX ISA, version 8.2.

// Local memory as instructions name it.
FN uint local_address(const void *pointer) { return (uint)__cvta_generic_to_shared(pointer); }

#if __CUDA_ARCH__ >= 800
// Starts a copy of 16 aligned bytes; of those beyond `bytes` there are zeros instead.
FN void copy16(uint to, const GLOBAL void *from, uint bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copies that were started since the last call are one group.
FN void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All groups but the newest `N` are there, as far as this thread started them.
template <int N> FN void await_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

// Four matrices of 8 rows of 16 bytes; thread i says where row i % 8 of matrix i / 8 is.
FN void load_matrices(uint (&out)[4], uint from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(from) : "memory");
}

// The same, each matrix transposed.
FN void load_transposed(uint (&out)[4], uint from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(from) : "memory");
}

// d += a · b for a of 16 × 16 and b of 16 × 8 f16 values.
FN void multiply_f16(float *d, const uint *a, uint b0, uint b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for bf16 values.
FN void multiply_bf16(float *d, const uint *a, uint b0, uint b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two f16 values of a word as two bf16 values.
FN uint as_bf16(uint word) {
    uint out;
    asm("{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, %1; cvt.f32.f16 x, l; cvt.f32.f16 y, h; "
        "cvt.rn.bf16x2.f32 %0, y, x; }" : "=r"(out) : "r"(word));
    return out;
}
#endif

// Two f32 values as the two f16 values of a word.
FN uint pack_f16(float low, float high) {
    uint out;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(out) : "f"(low), "f"(high));
#else
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
        : "=r"(out) : "f"(low), "f"(high));
#endif
    return out;
}
