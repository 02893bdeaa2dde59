// Types with integer quanta, as the other sources read them: value = scale · (quantum − OFFSET) − minimum.
//
// A type says
//   OFFSET     what is taken from each quantum
//   UNEQUAL    whether the two halves of a block have scales of their own
//   MINIMA     whether a minimum is taken from each value
//   group_vectors(columns)
//   pair_words(group, blocks, block, pair, part)    the quanta of quads `pair` and `pair` + 4, of four rows
//   block_scales(group, blocks, block, part)        for each of four rows
// A `part` is four of a group's 16 rows, a `quad` four consecutive columns of a block of 32; `blocks` is how many blocks of
// 32 a row has, `group` where the group begins. Places in `weights` are counted in vectors of 16 bytes.

// Signed bytes: of each of four rows four columns of a quad, and of the quad 16 columns on.
struct Pair {
    low: vec4<u32>,
    high: vec4<u32>,
}

// Scales of the first and the last 16 columns of a block, and minima.
struct Scales {
    first: vec4<f32>,
    last: vec4<f32>,
    minimum: vec4<f32>,
}

// Of a section, the bits from `shift` on.
fn bits(at: u32, shift: u32, mask: u32) -> vec4<u32> {
    return (weights[at] >> vec4<u32>(shift)) & vec4<u32>(mask);
}

// Quads of a section of nibbles.
fn nibbles(section: u32, block: u32, pair: u32, part: u32) -> Pair {
    let both = weights[section + block * 16u + pair * 4u + part];
    return Pair(both & vec4<u32>(0x0f0f0f0fu), (both >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}

// Quads of nibbles with their fifth bits.
fn five_bits(low: u32, high: u32, block: u32, pair: u32, part: u32) -> Pair {
    let words = nibbles(low, block, pair, part);
    let fifths = weights[high + block * 4u + part] >> vec4<u32>(pair);
    return Pair(
        words.low | ((fifths & vec4<u32>(0x01010101u)) << vec4<u32>(4u)),
        words.high | (fifths & vec4<u32>(0x10101010u))
    );
}

// f16 of four rows, of the 16 at `at`.
fn four_halves(at: u32, part: u32) -> vec4<f32> {
    let eight = weights[at + part / 2u];
    let four = select(eight.xy, eight.zw, part % 2u == 1u);
    return vec4<f32>(unpack2x16float(four.x), unpack2x16float(four.y));
}

// The same scale for a whole block.
fn whole(scale: vec4<f32>) -> Scales {
    return Scales(scale, scale, vec4<f32>());
}

// f16 scales and negated minima for each block.
fn scale_and_minimum(section: u32, block: u32, part: u32) -> Scales {
    let scale = four_halves(section + block * 4u, part);
    return Scales(scale, scale, -four_halves(section + block * 4u + 2u, part));
}

// Scales and minima of a type that has f16 d and dmin for 256 columns, and a byte each for 32.
fn two_level(subs: u32, tops: u32, block: u32, part: u32) -> Scales {
    let d = four_halves(tops + block / 8u * 4u, part);
    let dmin = four_halves(tops + block / 8u * 4u + 2u, part);
    let scale = d * vec4<f32>(unpack4xU8(weights[subs + block * 2u][part]));
    return Scales(scale, scale, dmin * vec4<f32>(unpack4xU8(weights[subs + block * 2u + 1u][part])));
}
