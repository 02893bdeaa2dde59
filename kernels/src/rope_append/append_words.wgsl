// A cache of f16 that is written to by devices that write no less than a word. Two values share one, and two groups may have
// one each: each changes its own bits, in one step.

@group(0) @binding(3) var<storage, read_write> keys: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> values: array<atomic<u32>>;

// The bits of `word` that must change for value `at` of an array to be this one.
fn change(word: u32, at: u32, value: f32) -> u32 {
    let shift = 16u * (at % 2u);
    return (((word >> shift) & 0xffffu) ^ pack2x16float(vec2(value, 0.0))) << shift;
}

fn put_key(at: u32, value: f32) { atomicXor(&keys[at / 2u], change(atomicLoad(&keys[at / 2u]), at, value)); }
fn put_value(at: u32, value: f32) { atomicXor(&values[at / 2u], change(atomicLoad(&values[at / 2u]), at, value)); }
