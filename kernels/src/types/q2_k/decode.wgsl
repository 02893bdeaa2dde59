// Q2_K, as files store it.

fn value_of_q2_k(start: u32, i: u32) -> f32 {
    let quant = bits_at(start + 16u + i / 128u * 32u + i % 32u, i / 32u % 4u * 2u, 2u);
    let both = byte_at(start + i / 16u);
    return half_at(start + 80u) * f32(both & 15u) * f32(quant) - half_at(start + 82u) * f32(both >> 4u);
}
