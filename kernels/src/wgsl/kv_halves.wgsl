// Read access to an f16 cache, 16 bytes at once: keys of eight positions, or values of eight dimensions.

@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;

// Four values in the type of the cache.
alias Four = vec2<u32>;

fn widened(four: Four) -> vec4<f32> { return vec4(unpack2x16float(four.x), unpack2x16float(four.y)); }

fn half_of(eight: vec4<u32>, i: u32) -> Four { return select(eight.xy, eight.zw, i % 2u == 1u); }

// Returns vector `i` of the key cache: the keys of four positions.
fn keys_at(i: u32) -> Four { return half_of(keys[i / 2u], i); }

// Returns value `i` in the low half of a word.
fn half_at(i: u32) -> u32 { return (values[i / 8u][i / 2u % 4u] >> (i % 2u * 16u)) & 0xffffu; }

// Returns four values, starting at value `i`. The caller uses only the first `left` of them.
fn values_at(i: u32, left: u32) -> Four {
    if constants.head_dim % 4u == 0u { return half_of(values[i / 8u], i / 4u); }
    let at = vec4(i) + min(vec4(0u, 1u, 2u, 3u), vec4(left - 1u));
    return vec2(half_at(at.x) | (half_at(at.y) << 16u), half_at(at.z) | (half_at(at.w) << 16u));
}
