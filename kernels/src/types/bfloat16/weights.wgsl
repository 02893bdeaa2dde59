// BF16: the upper halves of floats.

const LANES: u32 = 8u;

fn values_of(words: vec2<u32>) -> vec4<f32> {
    let low = words << vec2<u32>(16u);
    let high = words & vec2<u32>(0xffff0000u);
    return bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y));
}

fn four_values(vector: vec4<u32>, quad: u32) -> vec4<f32> {
    return values_of(select(vector.xy, vector.zw, quad % 2u == 1u));
}

fn dot_values(vector: vec4<u32>, factors: Factors) -> f32 {
    return dot(values_of(vector.xy), factors.low) + dot(values_of(vector.zw), factors.high);
}
