// Converts BF16 weights to f16. Weights beyond the range of f16 become infinite, so that the error is visible
// in the results.

fn weight_halves(words: vec2<u32>) -> vec4<f16> {
    let low = words << vec2<u32>(16u);
    let high = words & vec2<u32>(0xffff0000u);
    return vec4<f16>(bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y)));
}
