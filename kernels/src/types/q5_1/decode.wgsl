// Q5_1, as files store it.

fn value_of_q5_1(start: u32, i: u32) -> f32 {
    return half_at(start) * five_bits_at(start + 4u, i) + half_at(start + 2u);
}
