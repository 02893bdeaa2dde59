// Q4_1: nibbles, then f16 scales and minima.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = true;

fn group_vectors(columns: u32) -> u32 { return columns / 32u * 20u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    return nibbles(group, block, pair, part);
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return scale_and_minimum(group + blocks * 16u, block, part);
}
