// MXFP4, as files store it.

// Returns the doubled magnitude of quant 0 to 7.
fn doubled_magnitude(quant: u32) -> f32 {
    return f32((select(0x0c080604u, 0x03020100u, quant < 4u) >> (quant % 4u * 8u)) & 255u);
}

fn scale_mxfp4() {
    let exponent = bitcast<u32>(abs(largest_of(start, 32u))) >> 23u;
    d = select(exponent - 2u, 0u, exponent < 2u);
    inverses[0] = 0.0;
    if d > 0u { inverses[0] = bitcast<f32>((255u - d) << 23u); }
    lowest[0] = 0.0;
}
fn quant_of_mxfp4(i: u32) -> u32 {
    let value = steps_of(i, 0u);
    var quant = 0u;
    while quant < 7u && 2.0 * abs(value) > doubled_magnitude(quant) + doubled_magnitude(quant + 1u) { quant++; }
    return select(quant, quant | 8u, quant > 0u && value < 0.0);
}
fn byte_of_mxfp4(at: u32) -> u32 {
    if at == 0u { return d; }
    return nibbles_of(at - 1u);
}
