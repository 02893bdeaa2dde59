// F16.

const LANES: u32 = 8u;

fn values_of(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn four_values(vector: vec4<u32>, quad: u32) -> vec4<f32> {
    return values_of(select(vector.xy, vector.zw, quad % 2u == 1u));
}

fn dot_values(vector: vec4<u32>, factors: Factors) -> f32 {
    return dot(values_of(vector.xy), factors.low) + dot(values_of(vector.zw), factors.high);
}
