// Chunks of row-major f16 or bf16 weights: 16 rows of CHUNK columns. In row r, columns 16u to 16u + 15 lie where those of number
// u ^ r / 2 % 4 would. So lanes that read at once have banks of their own. WEIGHTS_BF16 selects bf16.

#define UP 1.0f
#define ROW_BYTES (CHUNK * 2)

FN uint group_bytes(uint columns) { return ((columns + 63) & ~63u) * 32; }

// A warp starts the copies of a chunk of a group. Rows are padded to whole pieces.
FN void copy_chunk(uint to, const uchar *group, uint k, uint column) {
    uint pitch = group_bytes(k) / 16, pieces = min((uint)ROW_BYTES, pitch - column * 2) / 16;
    #pragma unroll 1
    for (uint i = ITEM % 32; i < 16 * pieces; i += 32) {
        uint row = i / pieces, piece = i % pieces;
        copy16(to + row * ROW_BYTES + ((piece ^ (row / 2 % 4 * 2)) << 4), group + row * pitch + column * 2 + piece * 16, 16);
    }
}

// Two weights as f16 values. Values beyond the range of f16 saturate.
FN uint two_weights(uint word) {
#if WEIGHTS_BF16
    float both[2] = {AS_FLOAT(word << 16), AS_FLOAT(word & 0xffff0000u)};
    #pragma unroll
    for (uint i = 0; i < 2; i++) both[i] = both[i] > 65504.0f ? 65504.0f : both[i] < -65504.0f ? -65504.0f : both[i];
    return pack_f16(both[0], both[1]);
#else
    return word;
#endif
}

// Block `block` of a chunk of a group, as `decode` of quantised weights.
FN void decode(const uchar *part, uint block, uint *a) {
    uint g = ITEM % 32 / 4, t = ITEM % 4;
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        #pragma unroll
        for (uint r = 0; r < 2; r++) {
            uint2 four = LOAD2(part + (g * 2 + r) * ROW_BYTES + (((block * 2 + half) ^ (g % 4)) << 5) + t * 8);
            a[half * 4 + r] = two_weights(four.x);
            a[half * 4 + r + 2] = two_weights(four.y);
        }
    }
}
