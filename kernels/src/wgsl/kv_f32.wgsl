// Read access to an f32 cache: keys of four positions, or values of four dimensions, at once.

@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<f32>>;

// Four values in the type of the cache.
alias Four = vec4<f32>;

fn widened(four: Four) -> vec4<f32> { return four; }

// Returns vector `i` of the key cache: the keys of four positions.
fn keys_at(i: u32) -> Four { return keys[i]; }

// Returns four values, starting at value `i`. The caller uses only the first `left` of them.
fn values_at(i: u32, left: u32) -> Four {
    if constants.head_dim % 4u == 0u { return values[i / 4u]; }
    let at = vec4(i) + min(vec4(0u, 1u, 2u, 3u), vec4(left - 1u));
    return vec4(
        values[at.x / 4u][at.x % 4u], values[at.y / 4u][at.y % 4u], values[at.z / 4u][at.z % 4u],
        values[at.w / 4u][at.w % 4u],
    );
}
