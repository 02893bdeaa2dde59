// Code that the products share: constants and output.
struct Constants {
    first_group: vec3<u32>,
    rows: u32,
    word: u32,
    n: u32,
    k: u32,
    accumulate: u32,
    stride: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Writes a value of y, or adds to it.
fn put(row: u32, column: u32, value: f32) {
    let at = row * constants.stride + column;
    if constants.accumulate != 0u { y[at] += value; } else { y[at] = value; }
}
