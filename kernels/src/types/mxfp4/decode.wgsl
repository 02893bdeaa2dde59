// MXFP4, as files store it.

// Returns the doubled magnitude of quant 0 to 7.
fn doubled_magnitude(quant: u32) -> f32 {
    return f32((select(0x0c080604u, 0x03020100u, quant < 4u) >> (quant % 4u * 8u)) & 255u);
}

fn value_of_mxfp4(start: u32, i: u32) -> f32 {
    let exponent = byte_at(start);
    let quant = bits_at(start + 1u + i % 16u, i / 16u * 4u, 4u);
    let scale = bitcast<f32>(select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u));
    return select(scale, -scale, quant >= 8u) * doubled_magnitude(quant & 7u);
}
