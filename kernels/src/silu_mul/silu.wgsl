// SiLU(x) = x / (1 + e⁻ˣ). The exponent is clamped so that the divisor stays in range. Where it is clamped,
// the result is nearly zero.
fn silu(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + exp(min(-x, vec4(80.0)))); }
