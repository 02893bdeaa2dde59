// Q6_K, as files store it.

fn value_of_q6_k(start: u32, i: u32) -> f32 {
    let part = i / 128u;
    let quarter = i / 32u % 4u;
    let quant = bits_at(start + part * 64u + quarter % 2u * 32u + i % 32u, quarter / 2u * 4u, 4u)
        | (bits_at(start + 128u + part * 32u + i % 32u, quarter * 2u, 2u) << 4u);
    let scale = f32(byte_at(start + 192u + i / 16u) ^ 0x80u) - 128.0;
    return half_at(start + 208u) * scale * (f32(quant) - 32.0);
}
