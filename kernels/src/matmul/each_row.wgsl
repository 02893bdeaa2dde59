// One column of y per row of weights.

const COLUMNS: u32 = LINES;

fn columns() -> u32 { return constants.n; }

// First of four rows of weights.
fn first_line(group: u32, part: u32) -> u32 { return (group * PARTS + part) * 4u; }

fn value_of(row: u32, line: u32, place: Place) -> f32 { return gathered(row, line, place) * factor_of(row, place); }
