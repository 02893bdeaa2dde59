// f16 activations: rows of f16 values, padded with zeros to a multiple of 64.

// Returns the number of columns of a row that a kernel writes, including padding.
fn padded(width: u32) -> u32 { return (width + 63u) & ~63u; }

// Writes four values of a row, starting at column `column`. Columns from `width` on are padding.
fn put(item: u32, values: vec4<f32>, row: u32, column: u32, width: u32) {
    if column >= padded(width) { return; }
    var words = vec2(0u);
    if column < width {
        let halves = in_half_range(values);
        words = vec2(pack2x16float(halves.xy), pack2x16float(halves.zw));
    }
    let at = (row * padded(width) + column) / 2u;
    out[at] = words.x;
    out[at + 1u] = words.y;
}
