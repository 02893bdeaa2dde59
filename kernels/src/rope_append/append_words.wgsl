// A cache of f16 that is written to by devices that write no less than a word. Two values share one, and two groups may have
// one each: each changes its own bits, in one step.

@group(0) @binding(3) var<storage, read_write> keys: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> values: array<atomic<u32>>;

// The bits of `word` that must change for value `at` of an array to be this one. SwiftShader packs NaN into more than its
// half of a word: nothing else may change.
fn change(word: u32, at: u32, value: f32) -> u32 {
    let shift = 16u * (at % 2u);
    let stored = pack2x16float(in_half_range(vec4(value, vec3(0.0))).xy);
    return (((word >> shift) ^ stored) & 0xffffu) << shift;
}

fn put_key(at: u32, value: f32) { atomicXor(&keys[at / 2u], change(atomicLoad(&keys[at / 2u]), at, value)); }
fn put_value(at: u32, value: f32) { atomicXor(&values[at / 2u], change(atomicLoad(&values[at / 2u]), at, value)); }
