// Products with f32 or f16 activations for many rows of x. A group multiplies 64 rows of x by 64 rows of
// weights. 32 columns at a time pass through local memory. An item computes 4 × 8 values.

// Tiles, stored column by column, in vectors of four rows. The order of the vectors in a column depends on
// the column's quad, which avoids bank conflicts in writes and reads.
var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

fn slot(column: u32, four: u32) -> u32 { return column * 16u + (four ^ (column / 4u)); }

fn four_lines(row: u32, column: u32, values: vec4<f32>) {
    if column + $ju < constants.n { put(row, column + $ju, values[$j]); }
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
    // Data that the item loads: one quad of four rows of weights, and another quad of four rows of x.
    let quad = item / 4u % 8u;
    let group = min(place.y * 4u + item / 32u, groups - 1u) * group_vectors(constants.k);
    let x_quad = item % 8u;
    let last_row = used - 1u;
    var low$i = vec4<f32>();
    var high$i = vec4<f32>();
    for (var block = 0u; block < constants.k / 32u; block++) {
        let values = quad_values(group, constants.k, block, quad, item % 4u);
        w_tile[slot(quad * 4u + $i, item / 32u * 4u + item % 4u)] = values[$i];
        // Beyond the row count, the item loads the last row again, and does not write the result.
        let column = block * 32u + x_quad * 4u;
        let x$i = four_of_row(min(first_row + line * 4u + $iu, last_row), constants.k, column);
        let columns = transpose(mat4x4<f32>(x0, x1, x2, x3));
        x_tile[slot(x_quad * 4u + $iu, line)] = columns[$i];
        workgroupBarrier();
        for (var c = 0u; c < 32u; c++) {
            let low = w_tile[slot(c, lane)];
            let high = w_tile[slot(c, lane + 8u)];
            let factors = x_tile[slot(c, line)];
            low$i = fma(low, vec4<f32>(factors[$i]), low$i);
            high$i = fma(high, vec4<f32>(factors[$i]), high$i);
        }
        workgroupBarrier();
    }
    let row = first_row + line * 4u;
    let column = place.y * 64u + lane * 4u;
    if row + $iu < used { four_lines(row + $iu, column, low$i); four_lines(row + $iu, column + 32u, high$i); }
}
