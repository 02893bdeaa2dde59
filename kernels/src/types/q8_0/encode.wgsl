// Q8_0, as files store it.

fn scale_q8_0() { scale_by(abs(largest_of(start, 32u)) / 127.0); }
fn quant_of_q8_0(i: u32) -> u32 { return clamped(rounded(steps_of(i, 0u)) + 128.0, 255.0); }

fn byte_of_q8_0(at: u32) -> u32 {
    if at < 2u { return half_byte(d, at); }
    return quants[at - 2u] ^ 0x80u;
}
