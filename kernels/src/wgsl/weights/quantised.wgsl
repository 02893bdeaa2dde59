// Interface of types with blocks: value = scale · (quant − OFFSET) − minimum.
//
// A type defines
//   OFFSET     subtracted from each quant
//   UNEQUAL    whether the two halves of a block have separate scales
//   MINIMA     whether a minimum is subtracted from each value; if UNEQUAL, the halves have separate minima
//   group_vectors(columns)
//   pair_words(group, blocks, block, pair, part)    the quants of quads `pair` and `pair` + 4, of four rows
//   block_scales(group, blocks, block, part)        for each of four rows
//   values_of_quants(word)     the values of four quants (`integers.wgsl` defines it for integer quants)
// A `part` is four of a group's 16 rows. A `quad` is four consecutive columns of a block of 32. `blocks` is
// the number of blocks of 32 in a row, and `group` is the start of the group. Indices into `weights` count
// vectors of 16 bytes.

// Bytes of four rows, signed if quants are integers: the four columns of a quad, and those of the quad 16
// columns further on.
struct Pair {
    low: vec4<u32>,
    high: vec4<u32>,
}

// For four rows: the scales of the first 16 columns of a block, those of the last 16, and the minima. If
// UNEQUAL, `minimum` applies to the first 16 columns, otherwise to the block.
struct Scales {
    first: vec4<f32>,
    last: vec4<f32>,
    minimum: vec4<f32>,
    last_minimum: vec4<f32>,
}

// Shifts the four words at `at` right by `shift` bits and masks them.
fn bits(at: u32, shift: u32, mask: u32) -> vec4<u32> {
    return (weights[at] >> vec4<u32>(shift)) & vec4<u32>(mask);
}

// Returns two quads of a section of nibbles.
fn nibbles(section: u32, block: u32, pair: u32, part: u32) -> Pair {
    let both = weights[section + block * 16u + pair * 4u + part];
    return Pair(both & vec4<u32>(0x0f0f0f0fu), (both >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}

// Returns two quads whose fifth bits are in a separate section.
fn five_bits(low: u32, high: u32, block: u32, pair: u32, part: u32) -> Pair {
    let words = nibbles(low, block, pair, part);
    let fifths = weights[high + block * 4u + part] >> vec4<u32>(pair);
    return Pair(
        words.low | ((fifths & vec4<u32>(0x01010101u)) << vec4<u32>(4u)),
        words.high | (fifths & vec4<u32>(0x10101010u))
    );
}

// Returns four of the 16 f16 values at `at`, one per row of the part.
fn four_halves(at: u32, part: u32) -> vec4<f32> {
    let eight = weights[at + part / 2u];
    let four = select(eight.xy, eight.zw, part % 2u == 1u);
    return vec4<f32>(unpack2x16float(four.x), unpack2x16float(four.y));
}

// Returns the scales of a type with one scale for the whole block.
fn whole(scale: vec4<f32>) -> Scales {
    return Scales(scale, scale, vec4<f32>(), vec4<f32>());
}

// Returns the scales and minima of a type that stores an f16 scale and an f16 offset per block. The minimum
// is the negated offset.
fn scale_and_minimum(section: u32, block: u32, part: u32) -> Scales {
    let scale = four_halves(section + block * 4u, part);
    let minimum = -four_halves(section + block * 4u + 2u, part);
    return Scales(scale, scale, minimum, minimum);
}

// Returns the scales and minima of a type with f16 d and dmin per 256 columns, and a scale byte and a minimum
// byte per 32 columns.
fn two_level(subs: u32, tops: u32, block: u32, part: u32) -> Scales {
    let d = four_halves(tops + block / 8u * 4u, part);
    let dmin = four_halves(tops + block / 8u * 4u + 2u, part);
    let scale = d * vec4<f32>(unpack4xU8(weights[subs + block * 2u][part]));
    let minimum = dmin * vec4<f32>(unpack4xU8(weights[subs + block * 2u + 1u][part]));
    return Scales(scale, scale, minimum, minimum);
}
