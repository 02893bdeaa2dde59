// IQ4_XS, as files store it.

fn value_of_iq4_xs(start: u32, i: u32) -> f32 {
    let j = i / 32u;
    let scale = bits_at(start + 4u + j / 2u, j % 2u * 4u, 4u) | (bits_at(start + 2u + j / 4u, j % 4u * 2u, 2u) << 4u);
    let index = bits_at(start + 8u + j * 16u + i % 16u, i / 16u % 2u * 4u, 4u);
    return half_at(start) * (f32(scale) - 32.0) * value_of_index(index);
}
