// Access to a cache in f32 or f16. `base` is the first value of a kv head in a block.

typedef const GLOBAL KV *Keys;
typedef const GLOBAL KV *Values;

// The key of a position, from dimension `dim` on, and one of its dimensions.
#define KEYS_AT(keys, base, head_dim, dim, slot) ((keys) + (base) + (dim) * 16 + (slot))
#define LOAD_KEY(key, dim) LOAD_KV(key, (dim) * 16)
// The values of positions from `slot` on, from dimension `dim` + `lane` on, and one dimension of one of them.
#define VALUES_AT(values, base, head_dim, slot, dim, lane) \
    ((values) + (base) + (slot) * (head_dim) + (dim) + (lane))
#define LOAD_VALUE(value, head_dim, slot, dim) LOAD_KV(value, (slot) * (head_dim) + (dim))
