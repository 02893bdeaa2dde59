// Definitions that the kernel sources use, for OpenCL C 3.0. Each language of the C family has such a file
// and no other code of its own.
//
// RT_FP16 is defined for devices with half-precision arithmetic. NVIDIA's compiler does not define it, but
// accepts PTX.

#ifdef RT_FP16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
// Fused operations are written as fma, so that a row's bits do not depend on how the compiler treats
// surrounding code.
#pragma OPENCL FP_CONTRACT OFF

#define KERNEL(items) __kernel __attribute__((reqd_work_group_size(items, 1, 1))) void
#define FN static inline
#define GLOBAL __global
#define LOCAL __local
// Variables of a kernel in local memory. LOCAL is for pointers to them.
#define SHARED __local
// Arrays in local memory that are read 16 bytes at a time.
#define ALIGNED __attribute__((aligned(16)))
#define PRIVATE __private
#define RESTRICT restrict
#define HALF half
#define INFINITE INFINITY

// First statement of a kernel. A launch that may start before the previous one ends waits here.
#define BEGIN()

// Work item within its group, and index of the group.
#define ITEM ((uint)get_local_id(0))
#define GROUP(dimension) ((uint)get_group_id(dimension))
// Makes earlier writes to local memory visible to later reads.
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define LOCAL_MIN(pointer, value) atomic_min(pointer, value)

// Aligned loads, of 16 and 8 bytes first.
#define LOAD4(pointer) (*(const GLOBAL uint4 *)(pointer))
#define LOAD2(pointer) (*(const GLOBAL uint2 *)(pointer))
#define LOAD1(pointer) (*(const GLOBAL uint *)(pointer))
#define LOADF1(pointer) (*(const GLOBAL float *)(pointer))
#define LOADF4(pointer) (*(const GLOBAL float4 *)(pointer))
#define LOAD_LOCAL4(pointer) (*(const LOCAL uint4 *)(pointer))
#define LOAD_LOCALF4(pointer) (*(const LOCAL float4 *)(pointer))
#define UINT2(a, b) ((uint2)(a, b))
#define UINT4(a, b, c, d) ((uint4)(a, b, c, d))
#define FLOAT4(a, b, c, d) ((float4)(a, b, c, d))

#define AS_FLOAT(bits) as_float(bits)
#define AS_UINT(value) as_uint(value)
// Byte `i` of a word, signed.
#define BYTE(word, i) ((int)(char)(uchar)((word) >> (8 * (i))))

#define LOAD_HALF(pointer, i) vload_half(i, pointer)
#define STORE_HALF(pointer, i, value) vstore_half_rte(value, i, pointer)

// Unpacks the two halves of a word.
FN void halves(uint word, PRIVATE float *low, PRIVATE float *high) {
#if defined(__NV_CL_C_VERSION)
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(*low), "=f"(*high) : "r"(word));
#elif defined(RT_FP16)
    half2 both = as_half2(word);
    *low = convert_float(both.x);
    *high = convert_float(both.y);
#else
    *low = vload_half(0, (const PRIVATE half *)&word);
    *high = vload_half(1, (const PRIVATE half *)&word);
#endif
}

// Packs two values as halves into a word, rounded to nearest, ties to even.
FN uint pack_halves(float low, float high) {
#if defined(__NV_CL_C_VERSION)
    uint word;
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
        : "=r"(word) : "f"(low), "f"(high));
    return word;
#else
    uint word = 0;
    vstore_half_rte(low, 0, (PRIVATE half *)&word);
    vstore_half_rte(high, 1, (PRIVATE half *)&word);
    return word;
#endif
}

// Dot product of four signed bytes with four others, plus `sum`. Compilers for devices with such an
// instruction recognize this form. Their built-in function of that name may be slow.
FN int dot4(uint a, uint b, int sum) {
#if defined(__NV_CL_C_VERSION)
    int result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
#else
    return sum + BYTE(a, 0) * BYTE(b, 0) + BYTE(a, 1) * BYTE(b, 1) + BYTE(a, 2) * BYTE(b, 2)
        + BYTE(a, 3) * BYTE(b, 3);
#endif
}
// == end of the prelude ==
