// Matrix instructions of AMD's devices, and the matrix values held by each lane of a wave: its fragments.
//
// FRAGMENTS_OF_CDNA selects CDNA (MFMA, waves of 64) or RDNA 3 and 4 (WMMA, waves of 32). WEIGHTS_BF16
// selects bf16 or f16 values. Sources: the ISA documents of AMD's CDNA 1 to 3 and RDNA 3 to 4, and LLVM's
// built-in functions. CDNA 2 flushes subnormal f16 and bf16 values to zero.
//
// The left matrix has SIDE rows of DEPTH values. So has the right one, whose rows are the columns of the
// result.

#define DEPTH 16
#if FRAGMENTS_OF_CDNA
#define WAVE 64
#define SIDE 32
#else
#define WAVE 32
#define SIDE 16
#endif
// Floats of the result per lane.
#define SUMS (SIDE * SIDE / WAVE)

// Consecutive values of one row per lane: the whole row on RDNA 3, where both halves of a wave hold the same.
#if !FRAGMENTS_OF_CDNA && defined(__GFX11__)
#define LANE_VALUES 16
#else
#define LANE_VALUES 8
#endif
#define WORDS (LANE_VALUES / 2)

// A lane's row of either matrix and its first value. The row is also the column of its part of the result.
FN uint lane_row(uint lane) { return lane % SIDE; }
FN uint lane_value(uint lane) { return lane / SIDE * LANE_VALUES % DEPTH; }

// Row of a lane's float `i` of the result.
FN uint sum_row(uint lane, uint i) {
#if FRAGMENTS_OF_CDNA
    return i / 4 * 8 + lane / SIDE * 4 + i % 4;
#elif defined(__GFX11__)
    return i * 2 + lane / SIDE;
#else
    return lane / SIDE * 8 + i;
#endif
}

#if defined(__AMDGCN__)
#define FRAGMENT_SPACE()

// Words, converted to the vector type of a built-in function. Compilers disagree on that type for bf16.
template <uint N> struct Words {
    uint words[N];
    template <typename Vector> __attribute__((device, always_inline)) operator Vector() const {
        return __builtin_bit_cast(Vector, *this);
    }
};
template <uint N, typename From> FN Words<N> words_of(const From *from) {
    Words<N> out;
    __builtin_memcpy(out.words, from, sizeof(out));
    return out;
}
#define PRODUCT(instruction, words, ...) \
    auto sums = instruction(words_of<words>(a), words_of<words>(b), words_of<SUMS>(d) __VA_ARGS__); \
    __builtin_memcpy(d, &sums, sizeof(sums))

#if FRAGMENTS_OF_CDNA
// d += a · b for 8 values of each row, 4 per lane.
FN void mfma(float *d, const uint *a, const uint *b) {
#if !WEIGHTS_BF16
    PRODUCT(__builtin_amdgcn_mfma_f32_32x32x8f16, 2, , 0, 0, 0);
#elif !defined(__gfx908__)
    PRODUCT(__builtin_amdgcn_mfma_f32_32x32x8bf16_1k, 2, , 0, 0, 0);
#else
    // 4 values of each row, 2 per lane: first the leading values of all lanes, then the others.
    for (uint i = 0; i < 2; i++, a++, b++) { PRODUCT(__builtin_amdgcn_mfma_f32_32x32x4bf16, 1, , 0, 0, 0); }
#endif
}
#else
// d += a · b.
FN void wmma(float *d, const uint *a, const uint *b) {
#if defined(__GFX11__) && WEIGHTS_BF16
    PRODUCT(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, WORDS);
#elif defined(__GFX11__)
    PRODUCT(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32, WORDS);
#elif WEIGHTS_BF16
    PRODUCT(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, WORDS);
#else
    PRODUCT(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, WORDS);
#endif
}
#endif
#endif

// d += a · b. A sum does not depend on the order of the values if both matrices use the same. So a lane's
// eight values go to two instructions, although the document assigns a lane values that are not eight
// consecutive ones.
#if FRAGMENTS_OF_CDNA
#define MULTIPLY(d, a, b) \
    mfma(d, a, b); \
    mfma(d, (a) + 2, (b) + 2)
#else
#define MULTIPLY(d, a, b) wmma(d, a, b)
#endif
