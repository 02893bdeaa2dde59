// Normalizes x on the fly: values are multiplied by the norm's weight, and sums by 1 / √(mean x² + ε), which
// is known at the same time as the sums. A group reads all of x, so its items together have the squares for
// the mean.

@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;

// Sums of squares of the item's part of each row.
var<private> squares: array<f32, M>;

// Four values of row `m`, which starts at `row`.
fn four_of(m: u32, row: u32, column: u32) -> vec4<f32> {
    let values = x[row + column];
    squares[m] += dot(values, values);
    return values * norm[column];
}

fn share(row: u32, sums: vec4<f32>, place: Place) {
    gather(row, sums, place);
    gather_squares(row, squares[row], place);
    squares[row] = 0.0;
}

fn factor_of(row: u32, place: Place) -> f32 {
    return inverseSqrt(gathered_squares(row, place) / f32(constants.k) + constants.epsilon);
}
