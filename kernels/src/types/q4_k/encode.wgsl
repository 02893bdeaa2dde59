// Q4_K, as files store it.

fn scale_q4_k() { scale_with_minima(15.0, 32u, 63.0); }
fn quant_of_q4_k(i: u32) -> u32 { return clamped(floor(steps_of(i, i / 32u) + 0.5), 15.0); }

fn byte_of_q4_k(at: u32) -> u32 {
    if at < 16u { return byte_with_minima(at); }
    let i = at - 16u;
    return bits_of(i / 32u * 64u + i % 32u, 32u, 2u, 0u, 4u);
}
