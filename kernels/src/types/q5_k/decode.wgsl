// Q5_K, as files store it.

fn value_of_q5_k(start: u32, i: u32) -> f32 {
    let low = bits_at(start + 48u + i / 64u * 32u + i % 32u, i / 32u % 2u * 4u, 4u);
    return value_with_minimum(start, i / 32u, low | (bits_at(start + 16u + i % 32u, i / 32u, 1u) << 4u));
}
