// F8_E4M3: floats of 8 bits, then f32 scales. Only kernels that multiply by f32 read this type.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return columns / 32u * 36u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let at = group + block * 32u + pair * 4u + part;
    return Pair(weights[at], weights[at + 16u]);
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return whole(bitcast<vec4<f32>>(weights[group + blocks * 32u + block * 4u + part]));
}

// Returns the values of the four quants of a word. The arithmetic avoids subnormal floats, which a device may
// flush to zero.
fn values_of_quants(word: u32) -> vec4<f32> {
    let quants = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u);
    let magnitudes = quants & vec4<u32>(0x7fu);
    let normal = bitcast<vec4<f32>>((magnitudes << vec4<u32>(20u)) + vec4<u32>(0x3c000000u));
    let values = select(normal, vec4<f32>(magnitudes) / 512.0, magnitudes < vec4<u32>(8u));
    return select(values, -values, (quants & vec4<u32>(0x80u)) != vec4<u32>());
}
