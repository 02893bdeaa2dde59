// Q6_K, as files store it.

fn scale_q6_k() { scale_with_scales(-32.0, -31.1, 128.0); }
fn quant_of_q6_k(i: u32) -> u32 { return clamped(rounded(steps_of(i, i / 16u)) + 32.0, 63.0); }

fn byte_of_q6_k(at: u32) -> u32 {
    if at < 128u { return bits_of(at / 64u * 128u + at % 64u, 64u, 2u, 0u, 4u); }
    if at < 192u { return bits_of((at - 128u) / 32u * 128u + at % 32u, 32u, 4u, 4u, 2u); }
    if at < 208u { return scales[at - 192u]; }
    return half_byte(d, at);
}
