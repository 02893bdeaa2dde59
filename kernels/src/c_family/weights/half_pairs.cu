// Quantised weights as f16 values times UP, for the matrix units: a group of 16 rows is the left factor of mma.m16n8k16. A chunk
// of CHUNK columns of a group stands in local memory as a group of that many columns does.

#define CHUNK_BLOCKS (CHUNK / 32)
// Scales that are products of two numbers may be below the smallest normal f16: 16 times as large they are not.
#define UP 16.0f
// Words of signed bytes, for the matrix units' integers: others have positive bytes.
#define IS_SIGNED (OFFSET == 0 && !MINIMA)

// Two bytes of a word, without OFFSET, as f16 values: 1024 + byte as f16 has the byte in its last bits.
template <uint BYTES> FN uint two_values(uint word) {
    uint out;
    asm("{ .reg .b32 both; prmt.b32 both, %1, 0x64646464, %2; sub.rn.f16x2 %0, both, %3; }"
        : "=r"(out) : "r"(word), "n"(BYTES), "r"((0x6400u + (IS_SIGNED ? 128 : OFFSET)) * 0x10001u));
    return out;
}

FN uint scaled(uint values, uint scale, uint minimum) {
    uint out;
#if MINIMA
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(values), "r"(scale), "r"(minimum));
#else
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(values), "r"(scale));
#endif
    return out;
}

// Decodes block `block` of a chunk of a group: a lane's values of rows 2g and 2g + 1, g = lane / 4, as two left factors of 16
// columns. Of each 16 columns, a lane has four consecutive ones, 4 · (lane % 4) and the next.
FN void decode(const uchar *part, uint block, uint *a) {
    uint words[4];
    Pair pair;
    pair_words(part, CHUNK_BLOCKS, block, words);
    pair_scales(part, CHUNK_BLOCKS, block, &pair);
    #pragma unroll
    for (uint r = 0; r < 2; r++) {
        uint scale = pack_f16(pair.first[r] * UP, pair.first[r] * UP), minimum = 0;
        if (MINIMA) minimum = pack_f16(-pair.minimum[r] * UP, -pair.minimum[r] * UP);
        uint word = IS_SIGNED ? words[r] ^ 0x80808080u : words[r];
        a[r] = scaled(two_values<0x4140>(word), scale, minimum);
        a[r + 2] = scaled(two_values<0x4342>(word), scale, minimum);
        if (UNEQUAL) scale = pack_f16(pair.last[r] * UP, pair.last[r] * UP);
        if (UNEQUAL && MINIMA) minimum = pack_f16(-pair.last_minimum[r] * UP, -pair.last_minimum[r] * UP);
        word = IS_SIGNED ? words[r + 2] ^ 0x80808080u : words[r + 2];
        a[r + 4] = scaled(two_values<0x4140>(word), scale, minimum);
        a[r + 6] = scaled(two_values<0x4342>(word), scale, minimum);
    }
}
