// Output of a gated product: each column of y is SiLU(gate) · up, from a gate row of the weights and the
// corresponding up row. The gate rows precede the up rows. The first half of a group's parts consists of gate
// rows, and the second half of up rows.

const COLUMNS: u32 = LINES / 2u;

fn columns() -> u32 { return constants.n / 2u; }

// Returns the first of the four rows of weights that a part consists of.
fn first_line(group: u32, part: u32) -> u32 {
    let half = PARTS / 2u;
    return part / half * (constants.n / 2u) + (group * half + part % half) * 4u;
}

fn value_of(row: u32, line: u32, place: Place) -> f32 {
    let factor = factor_of(row, place);
    let gate = gathered(row, line, place) * factor;
    return silu(vec4<f32>(gate)).x * (gathered(row, line + COLUMNS, place) * factor);
}
