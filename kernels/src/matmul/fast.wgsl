// Multiplies the 16 rows of quantised weights of a group by M rows of int8 activations. An item processes
// four rows of some blocks. If fewer than M rows of x remain, it repeats the last one.

// Adds the products of a block of weights and block `at` of a row of x, if `is_there` is set.
fn add_product(block: Block, row: u32, at: u32, is_there: bool, sums: vec4<f32>) -> vec4<f32> {
    let low = x[row + at * 2u];
    let high = x[row + at * 2u + 1u];
    var dots = Dots();
    dots = add_dots(block.pairs[$p], low[$p], high[$p], dots);
    let scale = select(0.0, x_scale(row, at), is_there);
    return add_block(dots, x_sums(row, at), scale, block.scales, sums);
}

fn row_sums(line_group: u32, item: u32, start: u32, left: u32) -> array<vec4<f32>, M> {
    let blocks = constants.k / 32u;
    let group = line_group * group_vectors(constants.k);
    let step = ITEMS / PARTS;
    var sums: array<vec4<f32>, M>;
    let row$m = (start + min($mu, left - 1u)) * row_vectors(constants.k);
    // Issues the loads of BATCH blocks together to hide memory latency.
    for (var first = item / PARTS; first < blocks; first += BATCH * step) {
        let at$b = min(first + $bu * step, blocks - 1u);
        let block$b = load_block(group, blocks, at$b, item % PARTS);
        sums[$m] = add_product(block$b, row$m, at$b, first + $bu * step < blocks, sums[$m]);
    }
    return sums;
}
