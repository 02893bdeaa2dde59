// Q4_1, as files store it.

fn scale_q4_1() { scale_with_minimum(15.0); }
fn quant_of_q4_1(i: u32) -> u32 { return clamped(floor(steps_of(i, 0u) + 0.5), 15.0); }

fn byte_of_q4_1(at: u32) -> u32 {
    if at < 4u { return scale_byte(at); }
    return nibbles_of(at - 4u);
}
