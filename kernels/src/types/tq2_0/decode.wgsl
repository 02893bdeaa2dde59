// TQ2_0, as files store it.

fn value_of_tq2_0(start: u32, i: u32) -> f32 {
    let quant = bits_at(start + i / 128u * 32u + i % 32u, i / 32u % 4u * 2u, 2u);
    return half_at(start + 64u) * (f32(quant) - 1.0);
}
