// Access to a quantized cache. 32 dimensions of a position share an f16 scale. KEYS_Q4 and VALUES_Q4 say
// whether their quants have four bits, two to a byte, or eight.

#define KV uchar
#define KEY_BYTES (KEYS_Q4 ? 16 : 32)
#define VALUE_BYTES (VALUES_Q4 ? 16 : 32)

// The key of a position, from dimension `dim` on.
typedef struct {
    const GLOBAL uchar *quants;
    const GLOBAL HALF *scales;
    uint dim;
} Keys;

// The values of positions, from dimension `dim` on. A position has `blocks` scales.
typedef struct {
    const GLOBAL uchar *quants;
    const GLOBAL HALF *scales;
    uint blocks;
    uint dim;
} Values;

// Bytes from the start of a kv head in a block of the cache to its scales. `bytes` is that of 32 quants.
FN size_t scales_from(uint head_dim, uint bytes) { return (size_t)head_dim / 32 * 16 * bytes; }

// `base` is the index that the first value of the kv head would have in an f32 cache.
FN Keys keys_at(const GLOBAL uchar *keys, size_t base, uint head_dim, uint dim, uint slot) {
    const GLOBAL uchar *part = keys + base / 32 * (KEY_BYTES + 2);
    Keys at;
    at.quants = part + slot;
    at.scales = (const GLOBAL HALF *)(part + scales_from(head_dim, KEY_BYTES)) + slot;
    at.dim = dim;
    return at;
}

FN Values values_at(const GLOBAL uchar *values, size_t base, uint head_dim, uint slot, uint dim) {
    const GLOBAL uchar *part = values + base / 32 * (VALUE_BYTES + 2);
    Values at;
    at.blocks = head_dim / 32;
    at.quants = part + slot * at.blocks * VALUE_BYTES;
    at.scales = (const GLOBAL HALF *)(part + scales_from(head_dim, VALUE_BYTES)) + slot * at.blocks;
    at.dim = dim;
    return at;
}

// The quant of dimension `dim` from its byte.
FN float quant_of(uint byte, uint dim, bool is_q4) {
    return is_q4 ? (float)((int)(byte >> (dim / 16 % 2 * 4) & 15) - 8) : (float)BYTE(byte, 0);
}

FN float load_key(Keys at, uint dim) {
    dim += at.dim;
    uint byte = dim / 32 * KEY_BYTES + dim % KEY_BYTES;
    return quant_of(at.quants[byte * 16], dim, KEYS_Q4) * LOAD_HALF(at.scales, dim / 32 * 16);
}

FN float load_value(Values at, uint slot, uint dim) {
    dim += at.dim;
    uint block = slot * at.blocks + dim / 32;
    uint byte = at.quants[block * VALUE_BYTES + dim % VALUE_BYTES];
    return quant_of(byte, dim, VALUES_Q4) * LOAD_HALF(at.scales, block);
}

#define KEYS_AT(keys, base, head_dim, dim, slot) keys_at(keys, base, head_dim, dim, slot)
#define LOAD_KEY(key, dim) load_key(key, dim)
#define VALUES_AT(values, base, head_dim, slot, dim, lane) \
    values_at(values, base, head_dim, slot, (dim) + (lane))
#define LOAD_VALUE(value, head_dim, slot, dim) load_value(value, slot, dim)
