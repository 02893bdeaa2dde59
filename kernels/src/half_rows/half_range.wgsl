// Saturates to the range of f16. NaN is preserved.
fn in_half_range(values: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(values);
    let size = bits & vec4(0x7fffffffu);
    let limited = select(min(size, vec4(0x477fe000u)), size, size > vec4(0x7f800000u));
    return bitcast<vec4<f32>>(limited | (bits & vec4(0x80000000u)));
}
