// Q4_0, as files store it.

fn value_of_q4_0(start: u32, i: u32) -> f32 { return half_at(start) * (nibble_at(start + 2u, i) - 8.0); }
