// Decodes blocks to values, one value per item.

struct Constants {
    first_group: vec3<u32>,
    kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> blocks: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn byte_at(at: u32) -> u32 { return (blocks[at / 4u] >> (at % 4u * 8u)) & 0xffu; }

// The f16 value at an even byte.
fn half_at(at: u32) -> f32 { return half_value((blocks[at / 4u] >> (at % 4u * 8u)) & 0xffffu); }

// `bits` bits of a byte, from bit `low` on.
fn bits_at(at: u32, low: u32, bits: u32) -> u32 { return (byte_at(at) >> low) & ((1u << bits) - 1u); }

// Value `i` of a Q4_K or Q5_K block.
fn value_with_minimum(start: u32, i: u32, has_fifth: bool) -> f32 {
    let sub = i / 32u;
    let scales = start + 4u;
    var scale = byte_at(scales + sub) & 63u;
    var minimum = byte_at(scales + sub + 4u) & 63u;
    if sub >= 4u {
        let both = byte_at(scales + sub + 4u);
        scale = (both & 15u) | (bits_at(scales + sub - 4u, 6u, 2u) << 4u);
        minimum = (both >> 4u) | (bits_at(scales + sub, 6u, 2u) << 4u);
    }
    let low = start + select(16u, 48u, has_fifth) + sub / 2u * 32u;
    var quantum = bits_at(low + i % 32u, sub % 2u * 4u, 4u);
    if has_fifth { quantum |= bits_at(start + 16u + i % 32u, sub, 1u) << 4u; }
    return half_at(start) * f32(scale) * f32(quantum) - half_at(start + 2u) * f32(minimum);
}

fn value_of_q6_k(start: u32, i: u32) -> f32 {
    let part = i / 128u;
    let quarter = i / 32u % 4u;
    let quantum = bits_at(start + part * 64u + quarter % 2u * 32u + i % 32u, quarter / 2u * 4u, 4u)
        | (bits_at(start + 128u + part * 32u + i % 32u, quarter * 2u, 2u) << 4u);
    let scale = f32(byte_at(start + 192u + i / 16u) ^ 0x80u) - 128.0;
    return half_at(start + 208u) * scale * (f32(quantum) - 32.0);
}

fn value_of_tq1_0(start: u32, i: u32) -> f32 {
    var at = i % 32u;
    var digit = i / 32u;
    if i >= 240u {
        at = 48u + i % 4u;
        digit = (i - 240u) / 4u;
    } else if i >= 160u {
        at = 32u + i % 16u;
        digit = (i - 160u) / 16u;
    }
    var number = byte_at(start + at);
    for (var n = 0u; n < digit; n++) { number = number * 3u & 0xffu; }
    return half_at(start + 52u) * (f32((number * 3u) >> 8u) - 1.0);
}

// Value `i` of the block that starts at this byte.
fn value_of(kind: u32, start: u32, i: u32) -> f32 {
    switch kind {
        case 12u: { return value_with_minimum(start, i, false); }
        case 13u: { return value_with_minimum(start, i, true); }
        case 14u: { return value_of_q6_k(start, i); }
        case 34u: { return value_of_tq1_0(start, i); }
        case 35u: {
            let quantum = bits_at(start + i / 128u * 32u + i % 32u, i / 32u % 4u * 2u, 2u);
            return half_at(start + 64u) * (f32(quantum) - 1.0);
        }
        default: {}
    }
    let d = half_at(start);
    let nibble = i / 16u * 4u;
    switch kind {
        case 2u: { return d * (f32(bits_at(start + 2u + i % 16u, nibble, 4u)) - 8.0); }
        case 3u: { return d * f32(bits_at(start + 4u + i % 16u, nibble, 4u)) + half_at(start + 2u); }
        case 8u: { return d * (f32(byte_at(start + 2u + i) ^ 0x80u) - 128.0); }
        default: {}
    }
    let high = start + select(4u, 2u, kind == 6u);
    let quantum = f32(bits_at(high + 4u + i % 16u, nibble, 4u) | (bits_at(high + i / 8u, i % 8u, 1u) << 4u));
    if kind == 6u { return d * (quantum - 16.0); }
    return d * quantum + half_at(start + 2u);
}

@compute @workgroup_size(ITEMS)
fn decode_blocks(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let i = (workgroup.x + constants.first_group.x) * ITEMS + item;
    let values = values_of(constants.kind);
    if i >= constants.count * values { return; }
    out[i] = value_of(constants.kind, i / values * bytes_of(constants.kind), i % values);
}
