// A writable f16 cache for devices that cannot write less than a word. Two values share a word and may belong
// to two groups. Each group changes its own bits atomically.

@group(0) @binding(3) var<storage, read_write> keys: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> values: array<atomic<u32>>;

// Returns the bits of `word` that must change in order to store `value` at index `at`. The mask protects the
// other half of the word, because SwiftShader packs some NaNs into more than 16 bits.
fn change(word: u32, at: u32, value: f32) -> u32 {
    let shift = 16u * (at % 2u);
    let stored = pack2x16float(in_half_range(vec4(value, vec3(0.0))).xy);
    return (((word >> shift) ^ stored) & 0xffffu) << shift;
}

fn put_key(at: u32, value: f32) { atomicXor(&keys[at / 2u], change(atomicLoad(&keys[at / 2u]), at, value)); }
fn put_value(at: u32, value: f32) { atomicXor(&values[at / 2u], change(atomicLoad(&values[at / 2u]), at, value)); }
