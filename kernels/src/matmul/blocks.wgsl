// Reads int8 activations, and adds the products of a block of 32 columns to the sums of four rows of weights.

@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;

fn x_word(at: u32) -> u32 { return x[at / 4u][at % 4u]; }

// The offset of a row's scales is in words, and the stride of rows is in 16-byte vectors. Other functions
// identify a row by the index of its first vector.
fn scales_offset(width: u32) -> u32 { return ((width + 63u) & ~63u) / 4u; }
fn row_vectors(width: u32) -> u32 { return ((scales_offset(width) + width / 32u * 3u + 15u) & ~15u) / 4u; }

fn x_scale(row: u32, block: u32) -> f32 {
    return bitcast<f32>(x_word(row * 4u + scales_offset(constants.k) + block));
}

// Returns the sum of the first 16 quants of a block, and the sum of the last 16.
fn x_sums(row: u32, block: u32) -> vec2<i32> {
    let at = row * 4u + scales_offset(constants.k) + constants.k / 32u + block * 2u;
    return bitcast<vec2<i32>>(vec2<u32>(x_word(at), x_word(at + 1u)));
}

// Integer dot products of four rows of weights: over the first 16 columns of a block, and over the last 16.
struct Dots {
    first: vec4<i32>,
    last: vec4<i32>,
}

fn four_dots(words: vec4<u32>, quanta: u32) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(words.x, quanta),
        dot4I8Packed(words.y, quanta),
        dot4I8Packed(words.z, quanta),
        dot4I8Packed(words.w, quanta)
    );
}

fn add_dots(pair: Pair, low: u32, high: u32, dots: Dots) -> Dots {
    return Dots(dots.first + four_dots(pair.low, low), dots.last + four_dots(pair.high, high));
}

fn add_block(dots: Dots, sums_of_x: vec2<i32>, scale: f32, scales: Scales, sums: vec4<f32>) -> vec4<f32> {
    if UNEQUAL {
        let first = vec4<f32>(dots.first - vec4<i32>(OFFSET * sums_of_x.x));
        let last = vec4<f32>(dots.last - vec4<i32>(OFFSET * sums_of_x.y));
        let both = fma(scales.last * scale, last, fma(scales.first * scale, first, sums));
        if !MINIMA { return both; }
        let less = fma(-scales.minimum * scale, vec4<f32>(f32(sums_of_x.x)), both);
        return fma(-scales.last_minimum * scale, vec4<f32>(f32(sums_of_x.y)), less);
    }
    let sum_of_x = sums_of_x.x + sums_of_x.y;
    let both = vec4<f32>(dots.first + dots.last - vec4<i32>(OFFSET * sum_of_x));
    let product = fma(scales.first * scale, both, sums);
    if MINIMA { return fma(-scales.minimum * scale, vec4<f32>(f32(sum_of_x)), product); }
    return product;
}
