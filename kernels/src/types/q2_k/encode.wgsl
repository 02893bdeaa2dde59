// Q2_K, as files store it.

fn scale_q2_k() { scale_with_minima(3.0, 16u, 15.0); }
fn quant_of_q2_k(i: u32) -> u32 { return clamped(floor(steps_of(i, i / 16u) + 0.5), 3.0); }

fn byte_of_q2_k(at: u32) -> u32 {
    if at < 16u { return scales[at] | (minima[at] << 4u); }
    if at < 80u { return bits_of((at - 16u) / 32u * 128u + (at - 16u) % 32u, 32u, 4u, 0u, 2u); }
    return half_byte(select(m, d, at < 82u), at);
}
