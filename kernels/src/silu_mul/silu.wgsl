// SiLU, x / (1 + e⁻ˣ). Where e⁻ˣ would leave the range that divisors may have, the result is next to nothing.
fn silu(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + exp(min(-x, vec4(80.0)))); }
