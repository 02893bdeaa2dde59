// SiLU, x / (1 + e⁻ˣ). The exponent is clamped so that the divisor stays in range; the result is then nearly
// zero.
fn silu(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + exp(min(-x, vec4(80.0)))); }
