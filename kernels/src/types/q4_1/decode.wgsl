// Q4_1, as files store it.

fn value_of_q4_1(start: u32, i: u32) -> f32 {
    return half_at(start) * nibble_at(start + 4u, i) + half_at(start + 2u);
}
