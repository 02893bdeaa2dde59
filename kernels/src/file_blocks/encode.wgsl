// Encodes values as blocks. An item encodes four blocks byte by byte. In every type, four blocks are a whole
// number of words. A type defines
//   scale_TYPE()           fills in the scales
//   quant_of_TYPE(i)       the stored quant of value `i`
//   byte_of_TYPE(at)       byte `at` of the block, from its scales and quants

struct Constants {
    first_group: vec3<u32>,
    kind: u32, count: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// State of the current block: the index of its first value, the f16 bits of d, and those of m or dmin. For
// each sub-block, `inverses` and `lowest` convert values to quants, and `scales` and `minima` hold the stored
// scale and minimum.
var<private> start: u32;
var<private> d: u32;
var<private> m: u32;
var<private> inverses: array<f32, 16>;
var<private> lowest: array<f32, 16>;
var<private> scales: array<u32, 16>;
var<private> minima: array<u32, 16>;
var<private> quants: array<u32, 256>;

fn half_bits(value: f32) -> u32 { return half_of_f32(bitcast<u32>(value)); }

fn inverse_of(value: f32) -> f32 {
    if value == 0.0 { return 0.0; }
    return 1.0 / value;
}

// Rounds to the nearest integer, ties away from zero.
fn rounded(value: f32) -> f32 { return select(floor(value + 0.5), -floor(0.5 - value), value < 0.0); }

// Returns the value with the largest magnitude. In a tie, returns the first of these values.
fn largest_of(first: u32, count: u32) -> f32 {
    var largest = 0.0;
    for (var i = first; i < first + count; i++) {
        if abs(x[i]) > abs(largest) { largest = x[i]; }
    }
    return largest;
}

// Returns the best scale for quants within `range`, where quant zero represents `minimum`. Tries `steps`
// candidates for the inverse of the scale, starting at `inverse`, and fits a scale to the quants that each
// candidate yields.
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

// Sets the scale of a block that has a single scale.
fn scale_by(scale: f32) {
    d = half_bits(scale);
    inverses[0] = inverse_of(scale);
    lowest[0] = 0.0;
}

// Computes one scale and one minimum for 32 values, for quants from 0 to `most`.
fn scale_with_minimum(most: f32) {
    var minimum = x[start];
    var maximum = minimum;
    for (var i = 1u; i < 32u; i++) {
        minimum = min(minimum, x[start + i]);
        maximum = max(maximum, x[start + i]);
    }
    scale_by((maximum - minimum) / most);
    m = half_bits(minimum);
    lowest[0] = minimum;
}

// Computes sub-blocks of `size` values, with scales and minima up to `codes`, for quants from 0 to `most`.
fn scale_with_minima(most: f32, size: u32, codes: f32) {
    var scale = 0.0;
    var minimum = 0.0;
    for (var j = 0u; j < 256u / size; j++) {
        let first = start + j * size;
        var least = 0.0;
        var largest = x[first];
        for (var i = first; i < first + size; i++) {
            least = min(least, x[i]);
            largest = max(largest, x[i]);
        }
        let inverse = inverse_of(max(largest, least) - least);
        inverses[j] = search(first, size, least, vec2(0.0, most), (most - 1.0) * inverse, 0.1 * inverse, 21u);
        lowest[j] = -least;
        scale = max(scale, inverses[j]);
        minimum = max(minimum, -least);
    }
    d = half_bits(scale / codes);
    m = half_bits(minimum / codes);
    for (var j = 0u; j < 256u / size; j++) {
        let s = min(floor(inverses[j] * (codes * inverse_of(scale)) + 0.5), codes);
        let offset = min(floor(lowest[j] * (codes * inverse_of(minimum)) + 0.5), codes);
        scales[j] = u32(s);
        minima[j] = u32(offset);
        inverses[j] = inverse_of(half_value(d) * s);
        lowest[j] = -half_value(m) * offset;
    }
}

// Computes sixteen sub-blocks with signed scales from -`most` to `most` - 1. Quants range from `least` to
// -`least` - 1. The first candidate maps the largest value to `factor`.
fn scale_with_scales(least: f32, factor: f32, most: f32) {
    var largest = 0.0;
    for (var j = 0u; j < 16u; j++) {
        let first = start + j * 16u;
        let inverse = inverse_of(largest_of(first, 16u));
        let scale = search(first, 16u, 0.0, vec2(least, -least - 1.0), factor * inverse, -0.1 * inverse, 19u);
        if abs(scale) > abs(largest) { largest = scale; }
        inverses[j] = scale;
    }
    let scale = largest / -most;
    d = half_bits(scale);
    for (var j = 0u; j < 16u; j++) {
        let s = clamp(rounded(inverses[j] * inverse_of(scale)), -most, most - 1.0);
        scales[j] = bitcast<u32>(i32(s)) & 0xffu;
        inverses[j] = inverse_of(half_value(d) * s);
        lowest[j] = 0.0;
    }
}

// Returns value `i` in units of the quant step of sub-block `sub`.
fn steps_of(i: u32, sub: u32) -> f32 { return (x[start + i] - lowest[sub]) * inverses[sub]; }

fn clamped(quant: f32, most: f32) -> u32 { return u32(clamp(quant, 0.0, most)); }

// Returns the low byte (even `at`) or the high byte (odd `at`) of 16 bits.
fn half_byte(bits: u32, at: u32) -> u32 { return (bits >> (at % 2u * 8u)) & 0xffu; }

// Returns byte `at` of d and m, or of d and dmin.
fn scale_byte(at: u32) -> u32 { return half_byte(select(m, d, at < 2u), at); }

// Packs one field of each of `count` quants, `stride` apart, into a byte. The field has `bits` bits and
// starts at bit `low` of the quant.
fn bits_of(first: u32, stride: u32, count: u32, low: u32, bits: u32) -> u32 {
    var byte = 0u;
    for (var n = 0u; n < count; n++) {
        byte |= ((quants[first + n * stride] >> low) & ((1u << bits) - 1u)) << (n * bits);
    }
    return byte;
}

// Returns byte `at` of 32 nibbles, or of 32 fifth bits followed by 32 nibbles.
fn nibbles_of(at: u32) -> u32 { return bits_of(at, 16u, 2u, 0u, 4u); }
fn fives_of(at: u32) -> u32 {
    if at < 4u { return bits_of(at * 8u, 1u, 8u, 4u, 1u); }
    return nibbles_of(at - 4u);
}

// Returns byte `at` of d, dmin, and eight packed 6-bit scales and minima.
fn byte_with_minima(at: u32) -> u32 {
    if at < 4u { return scale_byte(at); }
    if at < 8u { return scales[at - 4u] | (scales[at] >> 4u << 6u); }
    if at < 12u { return minima[at - 8u] | (minima[at - 4u] >> 4u << 6u); }
    return (scales[at - 8u] & 15u) | ((minima[at - 8u] & 15u) << 4u);
}

fn scale(kind: u32) {
    switch kind {
        case $idu: { scale_$name(); }
        default: {}
    }
}

fn quant_of(i: u32) -> u32 {
    switch constants.kind {
        case $idu: { return quant_of_$name(i); }
        default: { return 0u; }
    }
}

fn byte_of(at: u32) -> u32 {
    switch constants.kind {
        case $idu: { return byte_of_$name(at); }
        default: { return 0u; }
    }
}

@compute @workgroup_size(ITEMS)
fn encode_blocks(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let four = (workgroup.x + constants.first_group.x) * ITEMS + item;
    if four * 4u >= constants.count { return; }
    let kind = constants.kind;
    let bytes = bytes_of(kind);
    var place = four * bytes;
    var word = 0u;
    var filled = 0u;
    for (var block = 4u * four; block < min(4u * four + 4u, constants.count); block++) {
        start = block * values_of(kind);
        scale(kind);
        for (var i = 0u; i < values_of(kind); i++) { quants[i] = quant_of(i); }
        for (var at = 0u; at < bytes; at++) {
            word |= byte_of(at) << (8u * filled);
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
