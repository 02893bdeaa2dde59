// Reads f16 activations for the tiled products. Rows are padded to a multiple of 64 values.

@group(0) @binding(2) var<storage, read> x: array<vec2<u32>>;

// Returns four values of a row of x, starting at `column`.
fn four_of_row(row: u32, k: u32, column: u32) -> vec4<f32> {
    let words = x[(row * ((k + 63u) & ~63u) + column) / 4u];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
