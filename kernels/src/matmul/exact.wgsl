// Multiplies rows of quantised weights by M rows of f32 activations. An item processes four rows of some
// blocks. If fewer than M rows of x remain, it repeats the last one.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// Multiplies a quad of each of four rows by four values of x.
fn dots(words: vec4<u32>, factors: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        dot(values_of_quants(words.x), factors),
        dot(values_of_quants(words.y), factors),
        dot(values_of_quants(words.z), factors),
        dot(values_of_quants(words.w), factors)
    );
}

fn sum_of(values: vec4<f32>) -> f32 { return dot(values, vec4<f32>(1.0)); }

// Adds the products of a block. Row `m` of x starts at `row`, and the block starts at `column`.
fn add_block(block: Block, m: u32, row: u32, column: u32, sums: vec4<f32>) -> vec4<f32> {
    let low$p = four_of(m, row, column + $pu);
    let high$p = four_of(m, row, column + 4u + $pu);
    let first_x = (low0 + low1) + (low2 + low3);
    let last_x = (high0 + high1) + (high2 + high3);
    var first = vec4<f32>(f32(-OFFSET) * sum_of(first_x));
    var last = vec4<f32>(f32(-OFFSET) * sum_of(last_x));
    first += dots(block.pairs[$p].low, low$p);
    last += dots(block.pairs[$p].high, high$p);
    var out = fma(block.scales.last, last, fma(block.scales.first, first, sums));
    if MINIMA && UNEQUAL {
        out = fma(-block.scales.minimum, vec4<f32>(sum_of(first_x)), out);
        out = fma(-block.scales.last_minimum, vec4<f32>(sum_of(last_x)), out);
    } else if MINIMA {
        out = fma(-block.scales.minimum, vec4<f32>(sum_of(first_x + last_x)), out);
    }
    return out;
}

fn row_sums(line_group: u32, item: u32, start: u32, left: u32) -> array<vec4<f32>, M> {
    let blocks = constants.k / 32u;
    let line = first_line(line_group, item % PARTS);
    let group = line / 16u * group_vectors(constants.k);
    var sums: array<vec4<f32>, M>;
    let row$m = (start + min($mu, left - 1u)) * blocks * 8u;
    for (var at = item / PARTS; at < blocks; at += ITEMS / PARTS) {
        let block = load_block(group, blocks, at, line / 4u % 4u);
        sums[$m] = add_block(block, $mu, row$m, at * 8u, sums[$m]);
    }
    return sums;
}
