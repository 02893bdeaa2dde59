// Q3_K, as files store it.

fn scale_q3_k() { scale_with_scales(-4.0, -3.1, 32.0); }
fn quant_of_q3_k(i: u32) -> u32 { return clamped(rounded(steps_of(i, i / 16u)) + 4.0, 7.0); }

fn byte_of_q3_k(at: u32) -> u32 {
    if at < 32u { return bits_of(at, 32u, 8u, 2u, 1u); }
    if at < 96u { return bits_of((at - 32u) / 32u * 128u + at % 32u, 32u, 4u, 0u, 2u); }
    if at >= 108u { return half_byte(d, at); }
    // Sixteen 6-bit scales: low nibbles, high nibbles, then the upper two bits.
    if at < 104u { return ((scales[at - 96u] + 32u) & 15u) | (((scales[at - 88u] + 32u) & 15u) << 4u); }
    var byte = 0u;
    for (var n = 0u; n < 4u; n++) { byte |= (((scales[at - 104u + n * 4u] + 32u) >> 4u) & 3u) << (n * 2u); }
    return byte;
}
