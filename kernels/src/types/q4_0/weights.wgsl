// Q4_0: nibbles, then f16 scales.

const OFFSET: i32 = 8;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return (columns / 32u * 18u + 3u) & ~3u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    return nibbles(group, block, pair, part);
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return whole(four_halves(group + blocks * 16u + block * 2u, part));
}
