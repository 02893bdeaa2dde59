// Decodes blocks to values, one value per item. A type defines
//   value_of_TYPE(start, i)    value `i` of the block that starts at a byte

struct Constants {
    first_group: vec3<u32>,
    kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> blocks: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn byte_at(at: u32) -> u32 { return (blocks[at / 4u] >> (at % 4u * 8u)) & 0xffu; }

// Returns the f16 value at an even byte.
fn half_at(at: u32) -> f32 { return half_value((blocks[at / 4u] >> (at % 4u * 8u)) & 0xffffu); }

// Returns `bits` bits of a byte, starting at bit `low`.
fn bits_at(at: u32, low: u32, bits: u32) -> u32 { return (byte_at(at) >> low) & ((1u << bits) - 1u); }

// Returns 4-bit quant `i` of 32. Values i and i + 16 share a byte.
fn nibble_at(at: u32, i: u32) -> f32 { return f32(bits_at(at + i % 16u, i / 16u * 4u, 4u)); }

// Returns 5-bit quant `i` of 32. The fifth bits precede the nibbles.
fn five_bits_at(at: u32, i: u32) -> f32 {
    return nibble_at(at + 4u, i) + f32(bits_at(at + i / 8u, i % 8u, 1u) << 4u);
}

// Returns the value of a quant in a block with d, dmin, and packed 6-bit scales and minima, one of each per
// 32 values.
fn value_with_minimum(start: u32, sub: u32, quant: u32) -> f32 {
    let scales = start + 4u;
    var scale = byte_at(scales + sub) & 63u;
    var minimum = byte_at(scales + sub + 4u) & 63u;
    if sub >= 4u {
        let both = byte_at(scales + sub + 4u);
        scale = (both & 15u) | (bits_at(scales + sub - 4u, 6u, 2u) << 4u);
        minimum = (both >> 4u) | (bits_at(scales + sub, 6u, 2u) << 4u);
    }
    return half_at(start) * f32(scale) * f32(quant) - half_at(start + 2u) * f32(minimum);
}

// Returns value `i` of the block that starts at byte `start`.
fn value_of(kind: u32, start: u32, i: u32) -> f32 {
    switch kind {
        case $idu: { return value_of_$name(start, i); }
        default: { return 0.0; }
    }
}

@compute @workgroup_size(ITEMS)
fn decode_blocks(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let i = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let values = values_of(constants.kind);
    if i >= constants.count * values { return; }
    out[i] = value_of(constants.kind, i / values * bytes_of(constants.kind), i % values);
}
