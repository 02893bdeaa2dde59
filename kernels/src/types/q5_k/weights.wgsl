// Q5_K: nibbles, then fifth bits, then u8 scales and minima, then f16 d and dmin per 256 columns.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = true;

fn group_vectors(columns: u32) -> u32 { return columns / 256u * 180u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    return five_bits(group, group + blocks * 16u, block, pair, part);
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return two_level(group + blocks * 20u, group + blocks * 22u, block, part);
}
