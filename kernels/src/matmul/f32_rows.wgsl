// f32 activations for the tiled products.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// Four values of a row of x, from a column on.
fn four_of_row(row: u32, k: u32, column: u32) -> vec4<f32> { return x[(row * k + column) / 4u]; }
