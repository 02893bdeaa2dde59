// Writes values to an f16 cache. `with_value` replaces value `place` of a vector, if `place` is below four.

fn four_stored(four: vec4<f32>) -> Four {
    let halves = in_half_range(four);
    return vec2(pack2x16float(halves.xy), pack2x16float(halves.zw));
}

fn stored(value: vec4<f32>) -> u32 { return pack2x16float(in_half_range(value).xy); }

fn with_value(four: Four, place: u32, bits: u32) -> Four {
    let mask = select(vec2(0u), vec2(0xffffu << (place % 2u * 16u)), vec2(0u, 1u) == vec2(place / 2u));
    return (four & ~mask) | (vec2(bits) & mask);
}
