// TQ2_0, as files store it.

fn scale_tq2_0() { scale_by(abs(largest_of(start, 256u))); }
fn quant_of_tq2_0(i: u32) -> u32 { return clamped(rounded(steps_of(i, 0u)) + 1.0, 2.0); }

fn byte_of_tq2_0(at: u32) -> u32 {
    if at < 64u { return bits_of(at / 32u * 128u + at % 32u, 32u, 4u, 0u, 2u); }
    return half_byte(d, at);
}
