// Q8_0: quants plus 128, then f16 scales.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return (columns / 32u * 34u + 3u) & ~3u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let at = group + block * 32u + pair * 4u + part;
    let signs = vec4<u32>(0x80808080u);
    return Pair(weights[at] ^ signs, weights[at + 16u] ^ signs);
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return whole(four_halves(group + blocks * 32u + block * 2u, part));
}
