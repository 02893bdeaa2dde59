// What the kernel sources rely on, in terms of CUDA C++ and of HIP C++; prelude.cl has the same words for OpenCL C.
//
// No header is needed: NVRTC knows CUDA's built-ins, and for AMD what is used are clang's own and the functions of ROCm's
// device library, so that a bare clang takes the text as well as hiprtc with its headers. Where such headers may define a
// word, too, it is a macro here. Division and square root are IEEE's, and nothing is fused but what is written as fma:
// compilers are told so (-fmad=false, -ffp-contract=off).

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
#define ulong unsigned long long // 64 bits on every host

#if defined(__AMDGCN__)

typedef __SIZE_TYPE__ size_t;
#ifndef __launch_bounds__
#define __launch_bounds__(items) __attribute__((launch_bounds(items)))
#endif
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#define FN static inline __attribute__((device, always_inline))
#define SHARED static __attribute__((shared))

typedef uint Uint2 __attribute__((ext_vector_type(2)));
typedef uint Uint4 __attribute__((ext_vector_type(4)));
typedef float Float4 __attribute__((ext_vector_type(4)));
#define uint2 Uint2
#define uint4 Uint4
#define float4 Float4
#define UINT2(a, b) (uint2{(a), (b)})
#define UINT4(a, b, c, d) (uint4{(a), (b), (c), (d)})
#define FLOAT4(a, b, c, d) (float4{(a), (b), (c), (d)})

#define ITEM ((uint)__builtin_amdgcn_workitem_id_x())
#define GROUP(dimension) \
    ((uint)((dimension) == 0   ? __builtin_amdgcn_workgroup_id_x() \
            : (dimension) == 1 ? __builtin_amdgcn_workgroup_id_y() \
                               : __builtin_amdgcn_workgroup_id_z()))
FN void barrier_of_group() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#define BARRIER() barrier_of_group()
#define LOCAL_MIN(pointer, value) \
    __hip_atomic_fetch_min(pointer, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP)

#define AS_FLOAT(bits) __builtin_bit_cast(float, (uint)(bits))
#define AS_UINT(value) __builtin_bit_cast(uint, (float)(value))

FN float half_to_float(ushort bits) { return (float)__builtin_bit_cast(_Float16, bits); }
FN ushort float_to_half(float value) { return __builtin_bit_cast(ushort, (_Float16)value); }

// The dot product of four signed bytes with four others, and `sum`.
FN int dot4(uint a, uint b, int sum) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, sum, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1011__) \
    || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__) \
    || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__)
    return __builtin_amdgcn_sdot4((int)a, (int)b, sum, false);
#else
    for (uint i = 0; i < 4; i++) sum += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
    return sum;
#endif
}

extern "C" __attribute__((device, const)) float __ocml_exp_f32(float);
extern "C" __attribute__((device)) float __ocml_sin_f32(float);
extern "C" __attribute__((device)) float __ocml_cos_f32(float);
extern "C" __attribute__((device, const)) float __ocml_sqrt_f32(float);
#define exp(x) __ocml_exp_f32(x)
#define sin(x) __ocml_sin_f32(x)
#define cos(x) __ocml_cos_f32(x)
#define sqrt(x) __ocml_sqrt_f32(x)
#define fma(a, b, c) __builtin_fmaf(a, b, c)
#define fmax(a, b) __builtin_fmaxf(a, b)
#define fmin(a, b) __builtin_fminf(a, b)
#define rint(x) __builtin_rintf(x)
template <typename T> FN T smaller(T a, T b) { return b < a ? b : a; }
template <typename T> FN T larger(T a, T b) { return a < b ? b : a; }
#define min(a, b) smaller(a, b)
#define max(a, b) larger(a, b)

#define LAUNCH_NEXT()
#define AWAIT_LAST()
#define RESTRICT __restrict__

#else

#define FN __device__ __forceinline__
#define SHARED __shared__

#define UINT2(a, b) make_uint2(a, b)
#define UINT4(a, b, c, d) make_uint4(a, b, c, d)
#define FLOAT4(a, b, c, d) make_float4(a, b, c, d)

#define ITEM ((uint)threadIdx.x)
#define GROUP(dimension) ((uint)((dimension) == 0 ? blockIdx.x : (dimension) == 1 ? blockIdx.y : blockIdx.z))
#define BARRIER() __syncthreads()
#define LOCAL_MIN(pointer, value) atomicMin(pointer, value)

#define AS_FLOAT(bits) __uint_as_float(bits)
#define AS_UINT(value) __float_as_uint(value)

FN float half_to_float(ushort bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
FN ushort float_to_half(float value) {
    ushort bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// The dot product of four signed bytes with four others, and `sum`.
FN int dot4(uint a, uint b, int sum) {
    int result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
}

// Of functions that C has for double under these names.
#define exp(x) expf(x)
#define sin(x) sinf(x)
#define cos(x) cosf(x)
#define sqrt(x) sqrtf(x)
#define fma(a, b, c) fmaf(a, b, c)
#define fmax(a, b) fmaxf(a, b)
#define fmin(a, b) fminf(a, b)
#define rint(x) rintf(x)

// From compute capability 9.0 on the next launch may begin before this one has ended, if the host asks for it. So nothing
// that another launch writes is read before AWAIT_LAST. There the compiler must not take such loads for loads of memory that
// never changes, which it may move up: pointers promise nothing. What no launch writes is read with LOAD_CONSTANT.
#if __CUDA_ARCH__ >= 900
#define LAUNCH_NEXT() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define AWAIT_LAST() asm volatile("griddepcontrol.wait;" ::: "memory")
#define RESTRICT
#else
#define LAUNCH_NEXT()
#define AWAIT_LAST()
#define RESTRICT __restrict__
#endif

#endif

#define KERNEL(items) extern "C" __global__ void __launch_bounds__(items)
// What a kernel does first.
#define BEGIN() \
    LAUNCH_NEXT(); \
    AWAIT_LAST()
#define GLOBAL
#define LOCAL
#define PRIVATE
// Arrays in local memory that are read 16 bytes at a time.
#define ALIGNED __attribute__((aligned(16)))
#define HALF ushort
#define INFINITE AS_FLOAT(0x7f800000u)
#undef NAN
#define NAN AS_FLOAT(0x7fc00000u)
#undef isnan
#define isnan(x) ((x) != (x))

// 16 and 8 aligned bytes.
#define LOAD4(pointer) (*(const uint4 *)(pointer))
#define LOAD2(pointer) (*(const uint2 *)(pointer))
#define LOAD1(pointer) (*(const uint *)(pointer))
#define LOADF1(pointer) (*(const float *)(pointer))
#define LOADF4(pointer) (*(const float4 *)(pointer))
#define LOAD_LOCAL4(pointer) (*(const uint4 *)(pointer))
#define LOAD_LOCALF4(pointer) (*(const float4 *)(pointer))

// Byte `i` of a word, signed.
#define BYTE(word, i) ((int)(signed char)(uchar)((word) >> (8 * (i))))

#define LOAD_HALF(pointer, i) half_to_float((pointer)[i])
#define STORE_HALF(pointer, i, value) ((pointer)[i] = float_to_half(value))

// The two halves of a word.
FN void halves(uint word, float *low, float *high) {
    *low = half_to_float((ushort)word);
    *high = half_to_float((ushort)(word >> 16));
}

// Two values as halves in a word, rounded to nearest, ties to even.
FN uint pack_halves(float low, float high) { return float_to_half(low) | (uint)float_to_half(high) << 16; }
// == end of the prelude ==
