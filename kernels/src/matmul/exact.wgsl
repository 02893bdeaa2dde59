// Sums of a group's 16 rows of quantised weights times M rows of f32: an item takes four rows of some blocks. Where fewer
// rows of x are left, the last one stands for the others.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// The products of a quad of four rows with four values of x.
fn dots(words: vec4<u32>, factors: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        dot(vec4<f32>(unpack4xI8(words.x)), factors),
        dot(vec4<f32>(unpack4xI8(words.y)), factors),
        dot(vec4<f32>(unpack4xI8(words.z)), factors),
        dot(vec4<f32>(unpack4xI8(words.w)), factors)
    );
}

fn sum_of(values: vec4<f32>) -> f32 { return dot(values, vec4<f32>(1.0)); }

// Adds what a block brings, with x from `at` on.
fn add_block(block: Block, at: u32, sums: vec4<f32>) -> vec4<f32> {
    let first_x = (x[at] + x[at + 1u]) + (x[at + 2u] + x[at + 3u]);
    let last_x = (x[at + 4u] + x[at + 5u]) + (x[at + 6u] + x[at + 7u]);
    var first = vec4<f32>(f32(-OFFSET) * sum_of(first_x));
    var last = vec4<f32>(f32(-OFFSET) * sum_of(last_x));
    first += dots(block.pairs[$p].low, x[at + $pu]);
    last += dots(block.pairs[$p].high, x[at + 4u + $pu]);
    var out = fma(block.scales.last, last, fma(block.scales.first, first, sums));
    if MINIMA { out = fma(-block.scales.minimum, vec4<f32>(sum_of(first_x + last_x)), out); }
    return out;
}

fn row_sums(line_group: u32, item: u32, start: u32, left: u32) -> array<vec4<f32>, M> {
    let blocks = constants.k / 32u;
    let group = line_group * group_vectors(constants.k);
    var sums: array<vec4<f32>, M>;
    let row$m = (start + min($mu, left - 1u)) * blocks * 8u;
    for (var at = item / PARTS; at < blocks; at += ITEMS / PARTS) {
        let block = load_block(group, blocks, at, item % PARTS);
        sums[$m] = add_block(block, row$m + at * 8u, sums[$m]);
    }
    return sums;
}
