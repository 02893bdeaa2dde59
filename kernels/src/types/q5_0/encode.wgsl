// Q5_0, as files store it.

fn scale_q5_0() { scale_by(largest_of(start, 32u) / -16.0); }
fn quant_of_q5_0(i: u32) -> u32 { return clamped(floor(steps_of(i, 0u) + 16.5), 31.0); }

fn byte_of_q5_0(at: u32) -> u32 {
    if at < 2u { return half_byte(d, at); }
    return fives_of(at - 2u);
}
