// Constants, queries with new keys and values, and frequencies of the kernels that append rows to the cache.

struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    sequences: u32,
    table_blocks: u32,
    logit_rows: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    cache_blocks: u32,
    rope_dims: u32,
    pairing: u32,
    magnitude: f32,
    tables: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(1) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> frequencies: array<f32>;
