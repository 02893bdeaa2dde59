// Q5_K, as files store it.

fn scale_q5_k() { scale_with_minima(31.0, 32u, 63.0); }
fn quant_of_q5_k(i: u32) -> u32 { return clamped(floor(steps_of(i, i / 32u) + 0.5), 31.0); }

fn byte_of_q5_k(at: u32) -> u32 {
    if at < 16u { return byte_with_minima(at); }
    if at < 48u { return bits_of(at - 16u, 32u, 8u, 4u, 1u); }
    let i = at - 48u;
    return bits_of(i / 32u * 64u + i % 32u, 32u, 2u, 0u, 4u);
}
