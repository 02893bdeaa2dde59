// F16 weights, as matrix units take them.

@group(0) @binding(1) var<storage, read> weights: array<vec4<f16>>;

fn four_weights(at: u32) -> vec4<f16> { return weights[at]; }
