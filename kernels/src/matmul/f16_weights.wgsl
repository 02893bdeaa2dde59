// F16 weights, as matrix units take them.

fn weight_halves(words: vec2<u32>) -> vec4<f16> { return halves(words); }
