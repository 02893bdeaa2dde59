// f16 activations: rows of f16 values, padded with zeros to a multiple of 64.

// Columns that are written of a row.
fn padded(width: u32) -> u32 { return (width + 63u) & ~63u; }

// Beyond the range of f16 its largest value; what is not a number stays none.
fn in_half_range(values: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(values);
    let size = bits & vec4(0x7fffffffu);
    let limited = select(min(size, vec4(0x477fe000u)), size, size > vec4(0x7f800000u));
    return bitcast<vec4<f32>>(limited | (bits & vec4(0x80000000u)));
}

// Writes four values of columns `column` … of a row; columns from `width` on are padding.
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
