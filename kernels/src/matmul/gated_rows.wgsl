// One column of y, SiLU(gate) · up, per row of the gate's weights and the matching row of up's. The gate's
// weights come first. The first half of a group's parts are the gate's.

const COLUMNS: u32 = LINES / 2u;

fn columns() -> u32 { return constants.n / 2u; }

// First of four rows of weights.
fn first_line(group: u32, part: u32) -> u32 {
    let half = PARTS / 2u;
    return part / half * (constants.n / 2u) + (group * half + part % half) * 4u;
}

fn value_of(row: u32, line: u32, place: Place) -> f32 {
    let factor = factor_of(row, place);
    let gate = gathered(row, line, place) * factor;
    return silu(vec4<f32>(gate)).x * (gathered(row, line + COLUMNS, place) * factor);
}
