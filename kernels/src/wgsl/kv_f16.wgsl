// Read access to an f16 cache: keys of four positions, or values of four dimensions, at once.

@group(0) @binding(2) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> values: array<vec2<u32>>;

// Four values in the type of the cache.
alias Four = vec2<u32>;

fn widened(four: Four) -> vec4<f32> { return vec4(unpack2x16float(four.x), unpack2x16float(four.y)); }

// Returns vector `i` of the key cache: the keys of four positions.
fn keys_at(i: u32) -> Four { return keys[i]; }

// Returns value `i` in the low half of a word.
fn half_at(i: u32) -> u32 { return (values[i / 4u][i / 2u % 2u] >> (i % 2u * 16u)) & 0xffffu; }

// Returns four values, starting at value `i`. The caller uses only the first `left` of them.
fn values_at(i: u32, left: u32) -> Four {
    if constants.head_dim % 4u == 0u { return values[i / 4u]; }
    let at = vec4(i) + min(vec4(0u, 1u, 2u, 3u), vec4(left - 1u));
    return vec2(half_at(at.x) | (half_at(at.y) << 16u), half_at(at.z) | (half_at(at.w) << 16u));
}
