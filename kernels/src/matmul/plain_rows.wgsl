// Returns four values of the row of x that starts at `row`, unchanged.
fn four_of(m: u32, row: u32, column: u32) -> vec4<f32> { return x[row + column]; }
