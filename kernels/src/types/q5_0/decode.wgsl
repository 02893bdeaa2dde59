// Q5_0, as files store it.

fn value_of_q5_0(start: u32, i: u32) -> f32 { return half_at(start) * (five_bits_at(start + 2u, i) - 16.0); }
