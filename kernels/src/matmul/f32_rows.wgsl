// Reads f32 activations for the tiled products.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// Returns four values of a row of x, starting at `column`.
fn four_of_row(row: u32, k: u32, column: u32) -> vec4<f32> { return x[(row * k + column) / 4u]; }
