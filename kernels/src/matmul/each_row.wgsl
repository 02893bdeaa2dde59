// Output of a plain product: each row of weights gives one column of y.

const COLUMNS: u32 = LINES;

fn columns() -> u32 { return constants.n; }

// Returns the first of the four rows of weights that a part consists of.
fn first_line(group: u32, part: u32) -> u32 { return (group * PARTS + part) * 4u; }

fn value_of(row: u32, line: u32, place: Place) -> f32 { return gathered(row, line, place) * factor_of(row, place); }
