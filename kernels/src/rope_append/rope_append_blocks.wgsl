// Rotates queries in place, and appends rotated keys and values to a quantized cache. A group processes one
// kv head of a row and the query heads that share it. KEY_BYTES and VALUE_BYTES are the bytes of 32 quants:
// 32 if quants have eight bits, or 16 if they have four.

// Several groups write to the same word. Each of them changes its own bits atomically.
@group(0) @binding(3) var<storage, read_write> keys: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> values: array<atomic<u32>>;

// Values of the key or of the value that the group quantizes.
var<workgroup> fresh: array<f32, ITEMS>;

// Returns the bits of `word` that must change so that the bits in `mask`, from byte `byte` on, become `bits`.
fn change(word: u32, byte: u32, mask: u32, bits: u32) -> u32 {
    let shift = byte % 4u * 8u;
    return (((word >> shift) ^ bits) & mask) << shift;
}

fn put_key(byte: u32, mask: u32, bits: u32) {
    atomicXor(&keys[byte / 4u], change(atomicLoad(&keys[byte / 4u]), byte, mask, bits));
}

fn put_value(byte: u32, mask: u32, bits: u32) {
    atomicXor(&values[byte / 4u], change(atomicLoad(&values[byte / 4u]), byte, mask, bits));
}

// Scale of 32 values: its f16 bits, and its inverse.
struct Scale {
    bits: u32,
    inverse: f32,
}

const NOT_A_NUMBER = 0x7e00u;

// Returns the scale of the 32 values in `fresh` from `first` on. The first of several largest magnitudes
// determines the sign of the scale of 4-bit quants.
fn scale_of(first: u32, bytes: u32) -> Scale {
    var largest = 0.0;
    var is_number = true;
    for (var i = first; i < first + 32u; i++) {
        let value = fresh[i];
        is_number = is_number && (bitcast<u32>(value) & 0x7fffffffu) <= 0x7f800000u;
        if abs(value) > abs(largest) { largest = value; }
    }
    let scale = select(largest / -8.0, abs(largest) / 127.0, bytes == 32u);
    if !is_number { return Scale(NOT_A_NUMBER, 0.0); }
    // A smaller scale is zero as f16.
    if abs(scale) < 1e-30 { return Scale(0u, 0.0); }
    return Scale(pack2x16float(vec2(scale, 0.0)) & 0xffffu, 1.0 / scale);
}

// Returns byte `i` of the quants of 32 values.
fn byte_of(first: u32, i: u32, scale: Scale, bytes: u32) -> u32 {
    if scale.bits == NOT_A_NUMBER { return 0u; }
    let low = fresh[first + i] * scale.inverse;
    if bytes == 32u { return bitcast<u32>(i32(sign(low) * floor(abs(low) + 0.5))) & 0xffu; }
    let high = fresh[first + i + 16u] * scale.inverse;
    return min(15u, u32(low + 8.5)) | (min(15u, u32(high + 8.5)) << 4u);
}

// Index of the first frequency of the row.
var<private> table: u32;

fn turn_of(position: u32, pair: u32) -> vec2<f32> {
    return turned(position, frequencies[table + pair]) * constants.magnitude;
}

// Returns the first dimension of a pair.
fn first_of(pair: u32) -> u32 { return select(pair, 2u * pair, constants.pairing == 0u); }

// Returns the second dimension of a pair.
fn second_of(pair: u32) -> u32 {
    return select(pair + constants.rope_dims / 2u, 2u * pair + 1u, constants.pairing == 0u);
}

// Returns a dimension of the rotated key that starts at `key`.
fn key_of(position: u32, key: u32, dim: u32) -> f32 {
    if dim >= constants.rope_dims { return qkv[key + dim]; }
    let pair = select(dim % max(1u, constants.rope_dims / 2u), dim / 2u, constants.pairing == 0u);
    let turn = turn_of(position, pair);
    let a = qkv[key + first_of(pair)];
    let b = qkv[key + second_of(pair)];
    return select(a * turn.x + b * turn.y, a * turn.y - b * turn.x, dim == first_of(pair));
}

@compute @workgroup_size(ITEMS)
fn rope_append(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup + constants.first_group;
    let row = group.x;
    let kv_head = group.y;
    if row >= count(0u, constants.rows) { return; }
    let sharing = constants.heads / constants.kv_heads;
    let head_dim = constants.head_dim;
    let position = position_of(row);
    let slot = position % 16u;
    let block = block_of(row, position);
    let joint = row * (constants.heads + 2u * constants.kv_heads) * head_dim;
    let query = joint + kv_head * sharing * head_dim;
    let key = joint + (constants.heads + kv_head) * head_dim;
    let value = key + constants.kv_heads * head_dim;
    let pairs = constants.rope_dims / 2u;
    table = min(sequence_of(row), constants.tables - 1u) * pairs;
    for (var i = item; i < pairs * sharing; i += ITEMS) {
        let turn = turn_of(position, i % pairs);
        let first = query + i / pairs * head_dim + first_of(i % pairs);
        let second = query + i / pairs * head_dim + second_of(i % pairs);
        let pair = vec2(qkv[first], qkv[second]);
        qkv[first] = pair.x * turn.y - pair.y * turn.x;
        qkv[second] = pair.x * turn.x + pair.y * turn.y;
    }
    if block >= constants.cache_blocks { return; }
    let part = block * constants.kv_heads + kv_head;
    let blocks = head_dim / 32u;
    let to_keys = part * blocks * 16u * (KEY_BYTES + 2u);
    let to_values = part * blocks * 16u * (VALUE_BYTES + 2u);
    let begin = item / 32u * 32u;
    let i = item % 32u;
    for (var first = 0u; first < head_dim; first += ITEMS) {
        let dim = first + item;
        let used = dim < head_dim;
        var fresh_key = 0.0;
        var fresh_value = 0.0;
        if used {
            fresh_key = key_of(position, key, dim);
            fresh_value = qkv[value + dim];
        }
        let in_range = in_half_range(vec4(fresh_key, fresh_value, 0.0, 0.0));
        workgroupBarrier(); // Earlier reads are done.
        fresh[item] = in_range.x;
        workgroupBarrier();
        if used {
            let scale = scale_of(begin, KEY_BYTES);
            if i < KEY_BYTES {
                let at = to_keys + (dim / 32u * KEY_BYTES + i) * 16u + slot;
                put_key(at, 0xffu, byte_of(begin, i, scale, KEY_BYTES));
            }
            if i == 0u {
                let at = to_keys + blocks * 16u * KEY_BYTES + (dim / 32u * 16u + slot) * 2u;
                put_key(at, 0xffffu, scale.bits);
            }
        }
        workgroupBarrier();
        fresh[item] = in_range.y;
        workgroupBarrier();
        if used {
            let scale = scale_of(begin, VALUE_BYTES);
            let at = slot * blocks + dim / 32u;
            if i < VALUE_BYTES {
                put_value(to_values + at * VALUE_BYTES + i, 0xffu, byte_of(begin, i, scale, VALUE_BYTES));
            }
            if i == 0u { put_value(to_values + blocks * 16u * VALUE_BYTES + at * 2u, 0xffffu, scale.bits); }
        }
    }
}
