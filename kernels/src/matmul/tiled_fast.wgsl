// Products with int8 activations for many rows of x. A group multiplies 64 rows of x by 64 rows of weights.
// Two blocks of 32 columns at a time pass through local memory. An item computes 4 × 8 values.

// Tiles, stored quad by quad, in vectors of four rows (one word per row). The order of the vectors in a quad
// depends on the quad, which avoids bank conflicts in writes and reads.
var<workgroup> w_tile: array<vec4<u32>, 256>;
var<workgroup> x_tile: array<vec4<u32>, 256>;
// Per block, in vectors of four rows: the scales of the first 16 columns, those of the last 16, and the
// minima, also of both. All but the first are unused if the type does not have them.
var<workgroup> w_first: array<vec4<f32>, 32>;
var<workgroup> w_last: array<vec4<f32>, 32>;
var<workgroup> w_minimum: array<vec4<f32>, 32>;
var<workgroup> w_last_minimum: array<vec4<f32>, 32>;
// Per block: the scales of the rows of x, and the sums of their first 16 and last 16 columns.
var<workgroup> x_scales: array<f32, 128>;
var<workgroup> sums_of_x: array<vec2<i32>, 128>;

fn slot(quad: u32, four: u32) -> u32 { return quad * 16u + (four ^ (quad % 8u)); }

fn four_lines(row: u32, column: u32, values: vec4<f32>) {
    if column + $ju < constants.n { put(row, column + $ju, values[$j]); }
}

fn scales_at(at: u32) -> Scales {
    var scales = whole(w_first[at]);
    if UNEQUAL { scales.last = w_last[at]; }
    if MINIMA { scales.minimum = w_minimum[at]; }
    if UNEQUAL && MINIMA { scales.last_minimum = w_last_minimum[at]; }
    return scales;
}

@compute @workgroup_size(ITEMS)
fn matmul_tiled(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let place = workgroup + constants.first_group;
    let used = count(constants.word, constants.rows);
    let first_row = place.x * 64u;
    if first_row >= used { return; }
    // In units of four rows, the item computes weight rows `lane` and `lane` + 8, and row `line` of x.
    let lane = item % 8u;
    let line = item / 8u;
    let groups = (constants.n + 15u) / 16u;
    let blocks = constants.k / 32u;
    let last_row = used - 1u;
    var low$i = vec4<f32>();
    var high$i = vec4<f32>();
    for (var first = 0u; first < blocks; first += 2u) {
        let step = min(2u, blocks - first);
        // Loads the weights: for each block, 4 groups × 4 pairs of quads × 4 parts.
        let part = item % 4u;
        let pair = item / 4u % 4u;
        let of_group = item / 16u % 4u;
        let b = item / 64u;
        if b < step {
            let group = min(place.y * 4u + of_group, groups - 1u) * group_vectors(constants.k);
            let words = pair_words(group, blocks, first + b, pair, part);
            w_tile[slot(b * 8u + pair, of_group * 4u + part)] = words.low;
            w_tile[slot(b * 8u + pair + 4u, of_group * 4u + part)] = words.high;
            if pair == 0u {
                let scales = block_scales(group, blocks, first + b, part);
                let at = b * 16u + of_group * 4u + part;
                w_first[at] = scales.first;
                if UNEQUAL { w_last[at] = scales.last; }
                if MINIMA { w_minimum[at] = scales.minimum; }
                if UNEQUAL && MINIMA { w_last_minimum[at] = scales.last_minimum; }
            }
        }
        // Loads x. Each of the first 64 items loads four quads of four rows. The other items load scales and
        // sums. Beyond the row count, items load the last row again, and do not write the result.
        if item < 64u {
            let quads = item % 4u;
            let at = min(first * 2u + quads, blocks * 2u - 1u);
            let x$i = x[min(first_row + item / 4u * 4u + $iu, last_row) * row_vectors(constants.k) + at];
            x_tile[slot(quads * 4u + $iu, item / 4u)] = vec4<u32>(x0[$i], x1[$i], x2[$i], x3[$i]);
        } else {
            let row = item - 64u;
            let from_row = min(first_row + row, last_row) * row_vectors(constants.k);
            for (var b = 0u; b < step; b++) {
                x_scales[b * 64u + row] = x_scale(from_row, first + b);
                sums_of_x[b * 64u + row] = x_sums(from_row, first + b);
            }
        }
        workgroupBarrier();
        for (var b = 0u; b < step; b++) {
            var low_dots$i = Dots();
            var high_dots$i = Dots();
            for (var quad = 0u; quad < 4u; quad++) {
                let at = b * 8u + quad;
                let low = Pair(w_tile[slot(at, lane)], w_tile[slot(at + 4u, lane)]);
                let high = Pair(w_tile[slot(at, lane + 8u)], w_tile[slot(at + 4u, lane + 8u)]);
                let first_x = x_tile[slot(at, line)];
                let last_x = x_tile[slot(at + 4u, line)];
                low_dots$i = add_dots(low, first_x[$i], last_x[$i], low_dots$i);
                high_dots$i = add_dots(high, first_x[$i], last_x[$i], high_dots$i);
            }
            let low_scales = scales_at(b * 16u + lane);
            let high_scales = scales_at(b * 16u + lane + 8u);
            let row$i = b * 64u + line * 4u + $iu;
            low$i = add_block(low_dots$i, sums_of_x[row$i], x_scales[row$i], low_scales, low$i);
            high$i = add_block(high_dots$i, sums_of_x[row$i], x_scales[row$i], high_scales, high$i);
        }
        workgroupBarrier();
    }
    let row = first_row + line * 4u;
    let column = place.y * 64u + lane * 4u;
    if row + $iu < used { four_lines(row + $iu, column, low$i); four_lines(row + $iu, column + 32u, high$i); }
}
