// Read access to a quantized cache: keys of four positions, or values of four dimensions, at once. KEY_BYTES
// and VALUE_BYTES are the bytes of 32 quants: 32 if quants have eight bits, or 16 if they have four.

@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;

// Four values as f32.
alias Four = vec4<f32>;

fn widened(four: Four) -> vec4<f32> { return four; }

// Returns the four signed bytes of a word, or the four quants whose low or high halves of bytes they are.
fn quants_of(word: u32, dim: u32, bytes: u32) -> vec4<f32> {
    if bytes == 32u {
        return vec4<f32>((bitcast<vec4<i32>>(vec4(word)) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u));
    }
    return vec4<f32>((vec4(word >> (dim / 16u % 2u * 4u)) >> vec4(0u, 8u, 16u, 24u)) & vec4(15u)) - 8.0;
}

// Returns vector `i` of the key cache: the keys of four positions.
fn keys_at(i: u32) -> Four {
    let part = i / (constants.head_dim * 4u);
    let dim = i / 4u % constants.head_dim;
    let blocks = constants.head_dim / 32u;
    let first = part * blocks * 4u * (KEY_BYTES + 2u);
    let line = dim / 32u * KEY_BYTES + dim % KEY_BYTES;
    let quants = quants_of(keys[first + line * 4u + i % 4u], dim, KEY_BYTES);
    let scale = first + blocks * 4u * KEY_BYTES + dim / 32u * 8u + i % 4u * 2u;
    return quants * vec4(unpack2x16float(keys[scale]), unpack2x16float(keys[scale + 1u]));
}

// Returns four values, starting at value `i`.
fn values_at(i: u32, left: u32) -> Four {
    let row = i / constants.head_dim;
    let dim = i % constants.head_dim;
    let blocks = constants.head_dim / 32u;
    let first = row / 16u * blocks * 4u * (VALUE_BYTES + 2u);
    let block = row % 16u * blocks + dim / 32u;
    let quants = quants_of(values[first + (block * VALUE_BYTES + dim % VALUE_BYTES) / 4u], dim, VALUE_BYTES);
    let scale = unpack2x16float(values[first + blocks * 4u * VALUE_BYTES + block / 2u]);
    return quants * scale[block % 2u];
}
