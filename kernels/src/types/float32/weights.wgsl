// F32.

const LANES: u32 = 4u;

fn four_values(vector: vec4<u32>, quad: u32) -> vec4<f32> { return bitcast<vec4<f32>>(vector); }

fn dot_values(vector: vec4<u32>, factors: Factors) -> f32 { return dot(bitcast<vec4<f32>>(vector), factors.low); }
