// f32 activations.

// Returns the number of columns of a row that a kernel writes.
fn padded(width: u32) -> u32 { return width; }

// Writes four values of a row, starting at column `column`.
fn put(item: u32, values: vec4<f32>, row: u32, column: u32, width: u32) {
    for (var i = 0u; i < 4u; i++) {
        if column + i < width { out[row * width + column + i] = bitcast<u32>(values[i]); }
    }
}
