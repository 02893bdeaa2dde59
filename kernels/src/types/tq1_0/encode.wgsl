// TQ1_0, as files store it.

// Packs five quants into a byte: a base-3 number, times 256/243 and rounded up.
fn digits_of(first: u32, stride: u32, count: u32) -> u32 {
    var number = 0u;
    for (var n = 0u; n < 5u; n++) {
        number *= 3u;
        if n < count { number += quants[first + n * stride]; }
    }
    return (number * 256u + 242u) / 243u;
}

fn scale_tq1_0() { scale_by(abs(largest_of(start, 256u))); }
fn quant_of_tq1_0(i: u32) -> u32 { return clamped(rounded(steps_of(i, 0u)) + 1.0, 2.0); }

fn byte_of_tq1_0(at: u32) -> u32 {
    if at < 32u { return digits_of(at, 32u, 5u); }
    if at < 48u { return digits_of(160u + at - 32u, 16u, 5u); }
    if at < 52u { return digits_of(240u + at - 48u, 4u, 4u); }
    return half_byte(d, at);
}
