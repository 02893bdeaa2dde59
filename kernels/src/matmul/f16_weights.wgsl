// F16 weights for matrix units.

fn weight_halves(words: vec2<u32>) -> vec4<f16> { return halves(words); }
