// Q3_K, as files store it.

fn value_of_q3_k(start: u32, i: u32) -> f32 {
    let quant = bits_at(start + 32u + i / 128u * 32u + i % 32u, i / 32u % 4u * 2u, 2u)
        | (bits_at(start + i % 32u, i / 32u, 1u) << 2u);
    let j = i / 16u;
    let scale = bits_at(start + 96u + j % 8u, j / 8u * 4u, 4u)
        | (bits_at(start + 104u + j % 4u, j / 4u * 2u, 2u) << 4u);
    return half_at(start + 108u) * (f32(scale) - 32.0) * (f32(quant) - 4.0);
}
