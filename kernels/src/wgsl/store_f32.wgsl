// Writes values to an f32 cache. `with_value` replaces value `place` of a vector, if `place` is below four.

fn four_stored(four: vec4<f32>) -> Four { return four; }

fn stored(value: vec4<f32>) -> u32 { return bitcast<u32>(value.x); }

fn with_value(four: Four, place: u32, bits: u32) -> Four {
    return select(four, vec4(bitcast<f32>(bits)), vec4(0u, 1u, 2u, 3u) == vec4(place));
}
