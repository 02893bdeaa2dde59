// The cache of keys and values: blocks of 16 positions, f32 or f16. KV is its type, and KV_F16 says which.

#if KV_F16
#define KV HALF
#define LOAD_KV(pointer, i) LOAD_HALF(pointer, i)
// A kernel that stores needs the text of f16 activations as well, for `in_half_range`.
#define STORE_KV(pointer, i, value) STORE_HALF(pointer, i, in_half_range(value))
#else
#define KV float
#define LOAD_KV(pointer, i) (pointer)[i]
#define STORE_KV(pointer, i, value) ((pointer)[i] = (value))
#endif
