// Normalizes x without a separate pass. Multiplies the values of x by the weights of the norm, and the sums
// by 1 / √(mean x² + ε). This factor is known as soon as the sums are, because the items of a group together
// read all of x.

@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;

// Sum of squares of the item's share of each row.
var<private> squares: array<f32, M>;

// Returns four values of row `m`, which starts at `row`, and adds their squares to the sum.
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
