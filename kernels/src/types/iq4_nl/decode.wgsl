// IQ4_NL, as files store it.

// Returns the value of a quant.
fn value_of_index(index: u32) -> f32 {
    let low = select(0xbfad9881u, 0xf6eaddcfu, (index & 4u) != 0u);
    let high = select(0x26190d01u, 0x71594535u, (index & 4u) != 0u);
    let four = select(low, high, (index & 8u) != 0u);
    return f32(unpack4xI8(four)[index % 4u]);
}

fn value_of_iq4_nl(start: u32, i: u32) -> f32 {
    return half_at(start) * value_of_index(bits_at(start + 2u + i % 16u, i / 16u * 4u, 4u));
}
