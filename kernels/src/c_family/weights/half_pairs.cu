// Quantised weights as f16 values times UP, for the matrix units: a group of 16 rows is the left factor of mma.m16n8k16. A chunk
// of CHUNK columns of a group stands in local memory as a group of that many columns does.

#define CHUNK_BLOCKS (CHUNK / 32)
// Scales that are products of two numbers may be below the smallest normal f16: 16 times as large they are not.
#define UP 16.0f
// Words of signed bytes, for the matrix units' integers: others have positive bytes.
#define IS_SIGNED (OFFSET == 0 && !MINIMA)

// Of each 16 columns, a lane has four, in two words of a left factor: if IN_ORDER is 1, columns 2t and 2t + 1 and columns 2t + 8
// and 2t + 9, t = lane % 4, as the matrix units count them, else 4t and 4t + 1, and the next two.
#ifndef IN_ORDER
#define IN_ORDER 0
#endif
// Which bytes of a word of four columns are those of the first and of the second word of a factor.
#if IN_ORDER
#define FIRST_BYTES 0x4240
#define LAST_BYTES 0x4341
#else
#define FIRST_BYTES 0x4140
#define LAST_BYTES 0x4342
#endif

// A word of four columns of this lane from words with columns of lanes t / 2 and t / 2 + 2.
FN uint in_order(uint low, uint high) { return __byte_perm(low, high, ITEM % 2 ? 0x7362 : 0x5140); }

// Whether rows are read as words of nibbles, and not of bytes.
#define READS_NIBBLES (HAS_E2M1 || (IN_ORDER && HAS_NIBBLES))
#if defined(TYPE_Q4_0) || defined(TYPE_Q4_1) || defined(TYPE_Q4_K)
#define HAS_NIBBLES 1
#endif
#ifndef HAS_E2M1
#define HAS_E2M1 0
#endif

// An f16 value as both halves of a word.
#define TWICE(bits) ((bits) * 0x10001u)

// Two bytes of a word, without OFFSET, as f16 values: 1024 + byte as f16 has the byte in its last bits.
template <uint BYTES> FN uint two_values(uint word) {
    uint out;
    asm("{ .reg .b32 both; prmt.b32 both, %1, 0x64646464, %2; sub.rn.f16x2 %0, both, %3; }"
        : "=r"(out) : "r"(word), "n"(BYTES), "r"(TWICE(0x6400u + (IS_SIGNED ? 128 : OFFSET))));
    return out;
}

FN uint times(uint values, uint scales) {
    uint out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(values), "r"(scales));
    return out;
}

FN uint times_plus(uint values, uint scales, uint added) {
    uint out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(values), "r"(scales), "r"(added));
    return out;
}

FN uint scaled(uint values, uint scale, uint minimum) {
    return MINIMA ? times_plus(values, scale, minimum) : times(values, scale);
}

// The values of a lane of a row in a block of 32 columns, before scales: those of the first 16 columns in values[0] and
// values[1], those of the last 16 in values[2] and values[3].
#if HAS_E2M1
// Bytes as the upper halves of f16 values.
FN void upper_halves(uint bytes, uint *values) {
    uint first = IN_ORDER ? (bytes << 8) & 0xff00ff00u : __byte_perm(bytes, 0, 0x1404);
    uint last = IN_ORDER ? bytes & 0xff00ff00u : __byte_perm(bytes, 0, 0x3424);
    values[0] = times(first, TWICE(0x7400u));
    values[1] = times(last, TWICE(0x7400u));
}

FN void row_values(uint word, uint values[4]) {
    // Sign, two bits of exponent and one of mantissa are those of the upper half of an f16 value that is 2^-14 times as large.
    uint low = ((word << 4) & 0x80808080u) | ((word << 1) & 0x0e0e0e0eu), high = (word & 0x80808080u) | ((word >> 3) & 0x0e0e0e0eu);
    upper_halves(low, values);
    upper_halves(high, values + 2);
}
#elif IN_ORDER && HAS_NIBBLES
// (word & mask) | bits, in one instruction.
FN uint masked_or(uint word, uint mask, uint bits) {
    uint out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
    return out;
}

// 1024 + nibble or 1024 + 16 · nibble, as f16 has the nibble in its last bits.
FN void row_values(uint word, uint values[4]) {
    const uint one = TWICE(0x3c00u), sixteenth = TWICE(0x2c00u);
    const uint offset = TWICE(0xe400u + OFFSET), whole_offset = TWICE(0xd400u + OFFSET * 16);
    uint odd = word >> 8;
    values[0] = times_plus(masked_or(word, 0x000f000fu, 0x64006400u), one, offset);
    values[1] = times_plus(masked_or(odd, 0x000f000fu, 0x64006400u), one, offset);
    values[2] = times_plus(masked_or(word, 0x00f000f0u, 0x64006400u), sixteenth, whole_offset);
    values[3] = times_plus(masked_or(odd, 0x00f000f0u, 0x64006400u), sixteenth, whole_offset);
}
#else
FN void half_values(uint word, uint *values) {
    if (IN_ORDER) {
        uint lane = ITEM % 4 / 2;
        word = in_order(__shfl_sync(0xffffffffu, word, lane, 4), __shfl_sync(0xffffffffu, word, lane + 2, 4));
    }
    uint bytes = IS_SIGNED ? word ^ 0x80808080u : word;
    values[0] = two_values<FIRST_BYTES>(bytes);
    values[1] = two_values<LAST_BYTES>(bytes);
}
#endif

// Scales times UP of the first and the last 16 columns of a block, and minima, of two rows, as the halves of words.
typedef struct {
    uint first, last, minimum, last_minimum;
} Halves;

#if HAS_E2M1
FN void half_scales(const uchar *part, uint block, Halves *out) {
    // Where an exponent is too small for this form of the scale, f16 has no such values.
    uint exponents = *(const ushort *)(part + CHUNK_BLOCKS * 256 + block * 16 + ITEM % 32 / 4 * 2);
    float low = AS_FLOAT((exponents << 23) & 0x7f800000u), high = AS_FLOAT((exponents << 15) & 0x7f800000u);
    out->first = pack_f16(low * UP, high * UP);
}
#elif defined(TYPE_Q4_K) || defined(TYPE_Q5_K)
// A byte of each of two rows times UP, or times -UP, as f16 values.
FN uint two_bytes(uint bytes, uint up, uint offset) { return times_plus(__byte_perm(bytes, 0x64646464u, 0x4140), up, offset); }

FN void half_scales(const uchar *part, uint block, Halves *out) {
#if defined(TYPE_Q4_K)
    const uchar *subs = part + CHUNK_BLOCKS * 256 + block * 32, *tops = part + CHUNK_BLOCKS * 288 + block / 8 * 64;
#else
    const uchar *subs = part + CHUNK_BLOCKS * 320 + block * 32, *tops = part + CHUNK_BLOCKS * 352 + block / 8 * 64;
#endif
    uint row = ITEM % 32 / 4;
    uint scales = *(const ushort *)(subs + row * 2), minima = *(const ushort *)(subs + 16 + row * 2);
    // 1024 · UP is 2^14.
    out->first = times(LOAD1(tops + row * 4), two_bytes(scales, TWICE(0x4c00u), TWICE(0xf400u)));
    out->minimum = times(LOAD1(tops + 32 + row * 4), two_bytes(minima, TWICE(0xcc00u), TWICE(0x7400u)));
}
#else
FN void half_scales(const uchar *part, uint block, Halves *out) {
    Pair pair;
    pair_scales(part, CHUNK_BLOCKS, block, &pair);
    out->first = pack_f16(pair.first[0] * UP, pair.first[1] * UP);
    if (MINIMA) out->minimum = pack_f16(-pair.minimum[0] * UP, -pair.minimum[1] * UP);
    if (UNEQUAL) out->last = pack_f16(pair.last[0] * UP, pair.last[1] * UP);
    if (UNEQUAL && MINIMA) out->last_minimum = pack_f16(-pair.last_minimum[0] * UP, -pair.last_minimum[1] * UP);
}
#endif

// Half `row` of a word, twice.
FN uint of_row(uint both, uint row) { return __byte_perm(both, 0, row ? 0x3232 : 0x1010); }

// Decodes block `block` of a chunk of a group: a lane's values of rows 2g and 2g + 1, g = lane / 4, as two left factors of 16
// columns.
FN void decode(const uchar *part, uint block, uint *a) {
    Halves scales;
    half_scales(part, block, &scales);
#if READS_NIBBLES
#if IN_ORDER
    const uchar *at = part + block * 256 + ITEM % 4 / 2 * 64 + ITEM % 32 / 4 * 8;
    uint2 low = LOAD2(at), high = LOAD2(at + 128), both = make_uint2(in_order(low.x, high.x), in_order(low.y, high.y));
#else
    uint2 both = LOAD2(part + block * 256 + PLACE);
#endif
#else
    uint words[4];
    pair_words(part, CHUNK_BLOCKS, block, words);
#endif
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        uint values[4];
#if READS_NIBBLES
        row_values(r ? both.y : both.x, values);
#else
        half_values(words[r], values);
        half_values(words[r + 2], values + 2);
#endif
        uint scale = of_row(scales.first, r), minimum = MINIMA ? of_row(scales.minimum, r) : 0;
        a[r] = scaled(values[0], scale, minimum);
        a[r + 2] = scaled(values[1], scale, minimum);
        if (UNEQUAL) scale = of_row(scales.last, r);
        if (UNEQUAL && MINIMA) minimum = of_row(scales.last_minimum, r);
        a[r + 4] = scaled(values[2], scale, minimum);
        a[r + 6] = scaled(values[3], scale, minimum);
    }
}
