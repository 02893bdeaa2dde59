// TQ1_0, as files store it.

fn value_of_tq1_0(start: u32, i: u32) -> f32 {
    var at = i % 32u;
    var digit = i / 32u;
    if i >= 240u {
        at = 48u + i % 4u;
        digit = (i - 240u) / 4u;
    } else if i >= 160u {
        at = 32u + i % 16u;
        digit = (i - 160u) / 16u;
    }
    var number = byte_at(start + at);
    for (var n = 0u; n < digit; n++) { number = number * 3u & 0xffu; }
    return half_at(start + 52u) * (f32((number * 3u) >> 8u) - 1.0);
}
