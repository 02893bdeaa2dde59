// f32 activations.

// Columns of a row that are written.
fn padded(width: u32) -> u32 { return width; }

// Writes four values of columns `column` … of a row.
fn put(item: u32, values: vec4<f32>, row: u32, column: u32, width: u32) {
    for (var i = 0u; i < 4u; i++) {
        if column + i < width { out[row * width + column + i] = bitcast<u32>(values[i]); }
    }
}
