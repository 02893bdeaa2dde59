// IQ4_XS, as files store it.

fn scale_iq4_xs() {
    var largest = 0.0;
    for (var j = 0u; j < 8u; j++) {
        inverses[j] = scale_of_indices(start + j * 32u);
        if abs(inverses[j]) > abs(largest) { largest = inverses[j]; }
    }
    let step = largest / -32.0;
    d = half_bits(step);
    for (var j = 0u; j < 8u; j++) {
        let s = clamp(rounded(inverses[j] * inverse_of(step)), -32.0, 31.0);
        scales[j] = u32(s + 32.0);
        inverses[j] = inverse_of(half_value(d) * s);
        lowest[j] = 0.0;
    }
}
fn quant_of_iq4_xs(i: u32) -> u32 { return nearest_index(steps_of(i, i / 32u)); }

fn byte_of_iq4_xs(at: u32) -> u32 {
    if at < 2u { return half_byte(d, at); }
    if at >= 8u { return bits_of((at - 8u) / 16u * 32u + (at - 8u) % 16u, 16u, 2u, 0u, 4u); }
    if at >= 4u { return (scales[(at - 4u) * 2u] & 15u) | ((scales[(at - 4u) * 2u + 1u] & 15u) << 4u); }
    var byte = 0u;
    for (var n = 0u; n < 4u; n++) { byte |= (scales[(at - 2u) * 4u + n] >> 4u) << (n * 2u); }
    return byte;
}
