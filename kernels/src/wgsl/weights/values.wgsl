// Dequantizes the weights of types with blocks.

// Dequantizes the words of a quad. For each column, returns a vector of four rows.
fn scaled_values(words: vec4<u32>, scales: Scales, quad: u32) -> mat4x4<f32> {
    let scale = select(scales.last, scales.first, quad < 4u);
    let minimum = select(scales.last_minimum, scales.minimum, quad < 4u);
    let bias = select(scale * f32(-OFFSET), -minimum, MINIMA);
    return transpose(mat4x4<f32>(
        fma(values_of_quants(words.x), vec4<f32>(scale.x), vec4<f32>(bias.x)),
        fma(values_of_quants(words.y), vec4<f32>(scale.y), vec4<f32>(bias.y)),
        fma(values_of_quants(words.z), vec4<f32>(scale.z), vec4<f32>(bias.z)),
        fma(values_of_quants(words.w), vec4<f32>(scale.w), vec4<f32>(bias.w))
    ));
}

fn quad_words(group: u32, blocks: u32, block: u32, quad: u32, part: u32) -> vec4<u32> {
    let pair = pair_words(group, blocks, block, quad % 4u, part);
    return select(pair.high, pair.low, quad < 4u);
}

// Returns the values of a quad: for each column, a vector of four rows.
fn quad_values(group: u32, columns: u32, block: u32, quad: u32, part: u32) -> mat4x4<f32> {
    let words = quad_words(group, columns / 32u, block, quad, part);
    return scaled_values(words, block_scales(group, columns / 32u, block, part), quad);
}
