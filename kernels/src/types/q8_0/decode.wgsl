// Q8_0, as files store it.

fn value_of_q8_0(start: u32, i: u32) -> f32 {
    return half_at(start) * (f32(byte_at(start + 2u + i) ^ 0x80u) - 128.0);
}
