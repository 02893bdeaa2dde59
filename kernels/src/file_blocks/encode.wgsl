// Encodes values as blocks. An item takes two blocks, which are whole words for every type, and computes them
// byte by byte. Quants are computed on demand from the block's scales.

struct Constants {
    first_group: vec3<u32>,
    kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// The current block: its first value, the bits of d and of m or dmin, and for each sub-block the conversion
// to quants, and scale and minimum as stored.
var<private> start: u32;
var<private> d: u32;
var<private> m: u32;
var<private> inverses: array<f32, 16>;
var<private> lowest: array<f32, 16>;
var<private> scales: array<u32, 16>;
var<private> minima: array<u32, 16>;

fn half_bits(value: f32) -> u32 { return half_of_f32(bitcast<u32>(value)); }

fn inverse_of(value: f32) -> f32 {
    if value == 0.0 { return 0.0; }
    return 1.0 / value;
}

// Rounds to the nearest integer, ties away from zero.
fn rounded(value: f32) -> f32 { return select(floor(value + 0.5), -floor(0.5 - value), value < 0.0); }

// The value with the largest magnitude, the first of several.
fn largest_of(first: u32, count: u32) -> f32 {
    var largest = 0.0;
    for (var i = first; i < first + count; i++) {
        if abs(x[i]) > abs(largest) { largest = x[i]; }
    }
    return largest;
}

// The best scale of those that inverses from `inverse` on lead to, for quants within `range`, where quant
// zero is `minimum`.
fn search(first: u32, count: u32, minimum: f32, range: vec2<f32>, inverse: f32, step: f32, steps: u32) -> f32 {
    var best = -1.0;
    var kept = 0.0;
    for (var n = 0u; n < steps; n++) {
        let factor = inverse + step * f32(n);
        var products = 0.0;
        var squares = 0.0;
        var error = 0.0;
        for (var i = first; i < first + count; i++) {
            let q = clamp(rounded((x[i] - minimum) * factor), range.x, range.y);
            products += q * (x[i] - minimum);
            squares += q * q;
        }
        var scale = 0.0;
        if squares != 0.0 { scale = products / squares; }
        for (var i = first; i < first + count; i++) {
            let q = clamp(rounded((x[i] - minimum) * factor), range.x, range.y);
            let rest = scale * q + minimum - x[i];
            error += rest * rest;
        }
        if best < 0.0 || error < best {
            best = error;
            kept = scale;
        }
    }
    return kept;
}

fn most_of(kind: u32) -> f32 {
    switch kind {
        case 2u, 3u, 12u: { return 15.0; }
        case 6u, 7u, 13u: { return 31.0; }
        case 14u: { return 63.0; }
        case 8u: { return 255.0; }
        default: { return 2.0; }
    }
}

// Computes one scale and minimum for the whole block.
fn scale_alone(kind: u32) {
    let largest = largest_of(start, values_of(kind));
    var minimum = x[start];
    var maximum = minimum;
    for (var i = 1u; i < values_of(kind); i++) {
        minimum = min(minimum, x[start + i]);
        maximum = max(maximum, x[start + i]);
    }
    let has_minimum = kind == 3u || kind == 7u;
    var scale = abs(largest);
    if has_minimum { scale = (maximum - minimum) / most_of(kind); }
    if kind == 2u { scale = largest / -8.0; }
    if kind == 6u { scale = largest / -16.0; }
    if kind == 8u { scale /= 127.0; }
    d = half_bits(scale);
    m = half_bits(minimum);
    inverses[0] = inverse_of(scale);
    lowest[0] = select(0.0, minimum, has_minimum);
}

// Computes eight sub-blocks with 6-bit scales and minima.
fn scale_with_minima(kind: u32) {
    let most = most_of(kind);
    var scale = 0.0;
    var minimum = 0.0;
    for (var j = 0u; j < 8u; j++) {
        let first = start + j * 32u;
        var least = 0.0;
        var largest = x[first];
        for (var i = first; i < first + 32u; i++) {
            least = min(least, x[i]);
            largest = max(largest, x[i]);
        }
        let inverse = inverse_of(max(largest, least) - least);
        inverses[j] = search(first, 32u, least, vec2(0.0, most), (most - 1.0) * inverse, 0.1 * inverse, 21u);
        lowest[j] = -least;
        scale = max(scale, inverses[j]);
        minimum = max(minimum, -least);
    }
    d = half_bits(scale / 63.0);
    m = half_bits(minimum / 63.0);
    for (var j = 0u; j < 8u; j++) {
        let s = min(floor(inverses[j] * (63.0 * inverse_of(scale)) + 0.5), 63.0);
        let offset = min(floor(lowest[j] * (63.0 * inverse_of(minimum)) + 0.5), 63.0);
        scales[j] = u32(s);
        minima[j] = u32(offset);
        inverses[j] = inverse_of(half_value(d) * s);
        lowest[j] = -half_value(m) * offset;
    }
}

// Computes sixteen sub-blocks with 8-bit scales.
fn scale_with_scales() {
    var largest = 0.0;
    for (var j = 0u; j < 16u; j++) {
        let first = start + j * 16u;
        let inverse = inverse_of(largest_of(first, 16u));
        let scale = search(first, 16u, 0.0, vec2(-32.0, 31.0), -31.1 * inverse, -0.1 * inverse, 19u);
        if abs(scale) > abs(largest) { largest = scale; }
        inverses[j] = scale;
    }
    let scale = largest / -128.0;
    d = half_bits(scale);
    for (var j = 0u; j < 16u; j++) {
        let s = clamp(rounded(inverses[j] * inverse_of(scale)), -128.0, 127.0);
        scales[j] = bitcast<u32>(i32(s)) & 0xffu;
        inverses[j] = inverse_of(half_value(d) * s);
        lowest[j] = 0.0;
    }
}

// The stored quant of value `i`.
fn quantum_of(kind: u32, i: u32) -> u32 {
    var sub = 0u;
    if kind == 12u || kind == 13u { sub = i / 32u; }
    if kind == 14u { sub = i / 16u; }
    let value = (x[start + i] - lowest[sub]) * inverses[sub];
    var quantum = floor(value + 0.5);
    switch kind {
        case 2u: { quantum = floor(value + 8.5); }
        case 6u: { quantum = floor(value + 16.5); }
        case 8u: { quantum = rounded(value) + 128.0; }
        case 14u: { quantum = rounded(value) + 32.0; }
        case 34u, 35u: { quantum = rounded(value) + 1.0; }
        default: {}
    }
    return u32(clamp(quantum, 0.0, most_of(kind)));
}

// Packs quants of `count` values, `stride` apart, into a byte: `bits` bits of each, starting at bit `low`.
fn bits_of(kind: u32, first: u32, stride: u32, count: u32, low: u32, bits: u32) -> u32 {
    var byte = 0u;
    for (var n = 0u; n < count; n++) {
        byte |= ((quantum_of(kind, first + n * stride) >> low) & ((1u << bits) - 1u)) << (n * bits);
    }
    return byte;
}

// Five quants in base 3, times 256/243, rounded up.
fn digits_of(kind: u32, first: u32, stride: u32, count: u32) -> u32 {
    var number = 0u;
    for (var n = 0u; n < 5u; n++) {
        number *= 3u;
        if n < count { number += quantum_of(kind, first + n * stride); }
    }
    return (number * 256u + 242u) / 243u;
}

// Byte `i` of the twelve that hold eight 6-bit scales and minima.
fn packed_scale(i: u32) -> u32 {
    if i < 4u { return scales[i] | (scales[i + 4u] >> 4u << 6u); }
    if i < 8u { return minima[i - 4u] | (minima[i] >> 4u << 6u); }
    return (scales[i - 4u] & 15u) | ((minima[i - 4u] & 15u) << 4u);
}

fn byte_of_super_block(kind: u32, at: u32) -> u32 {
    if kind == 14u {
        if at < 128u { return bits_of(kind, at / 64u * 128u + at % 64u, 64u, 2u, 0u, 4u); }
        if at < 192u { return bits_of(kind, (at - 128u) / 32u * 128u + at % 32u, 32u, 4u, 4u, 2u); }
        if at < 208u { return scales[at - 192u]; }
    } else if kind == 34u {
        if at < 32u { return digits_of(kind, at, 32u, 5u); }
        if at < 48u { return digits_of(kind, 160u + at - 32u, 16u, 5u); }
        if at < 52u { return digits_of(kind, 240u + at - 48u, 4u, 4u); }
    } else if at < 64u {
        return bits_of(kind, at / 32u * 128u + at % 32u, 32u, 4u, 0u, 2u);
    }
    return (d >> (at % 2u * 8u)) & 0xffu;
}

// Byte `at` of the block. The formats are those of the tensor types.
fn byte_of(kind: u32, at: u32) -> u32 {
    if kind == 14u || kind == 34u || kind == 35u { return byte_of_super_block(kind, at); }
    if at < 2u { return (d >> (at * 8u)) & 0xffu; }
    if kind == 8u { return quantum_of(kind, at - 2u) ^ 0x80u; }
    if kind == 2u { return bits_of(kind, at - 2u, 16u, 2u, 0u, 4u); }
    if kind == 6u {
        if at < 6u { return bits_of(kind, (at - 2u) * 8u, 1u, 8u, 4u, 1u); }
        return bits_of(kind, at - 6u, 16u, 2u, 0u, 4u);
    }
    if at < 4u { return (m >> (at % 2u * 8u)) & 0xffu; }
    if kind == 3u { return bits_of(kind, at - 4u, 16u, 2u, 0u, 4u); }
    if kind == 7u {
        if at < 8u { return bits_of(kind, (at - 4u) * 8u, 1u, 8u, 4u, 1u); }
        return bits_of(kind, at - 8u, 16u, 2u, 0u, 4u);
    }
    if at < 16u { return packed_scale(at - 4u); }
    if kind == 13u && at < 48u { return bits_of(kind, at - 16u, 32u, 8u, 4u, 1u); }
    let i = at - select(16u, 48u, kind == 13u);
    return bits_of(kind, i / 32u * 64u + i % 32u, 32u, 2u, 0u, 4u);
}

@compute @workgroup_size(ITEMS)
fn encode_blocks(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let pair = (workgroup.x + constants.first_group.x) * ITEMS + item;
    if pair >= (constants.count + 1u) / 2u { return; }
    let kind = constants.kind;
    let bytes = bytes_of(kind);
    var place = pair * (bytes / 2u);
    var word = 0u;
    var filled = 0u;
    for (var block = 2u * pair; block < min(2u * pair + 2u, constants.count); block++) {
        start = block * values_of(kind);
        if kind == 12u || kind == 13u { scale_with_minima(kind); }
        else if kind == 14u { scale_with_scales(); }
        else { scale_alone(kind); }
        for (var at = 0u; at < bytes; at++) {
            word |= byte_of(kind, at) << (8u * filled);
            filled++;
            if filled == 4u {
                out[place] = word;
                place++;
                word = 0u;
                filled = 0u;
            }
        }
    }
    if filled > 0u { out[place] = word; }
}
