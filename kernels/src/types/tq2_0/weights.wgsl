// TQ1_0 and TQ2_0: 2-bit quants, then f16 scales per 256 columns.

const OFFSET: i32 = 1;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return (columns / 256u * 66u + 3u) & ~3u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let at = group + block * 8u + part;
    return Pair(bits(at, pair * 2u, 0x03030303u), bits(at + 4u, pair * 2u, 0x03030303u));
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    return whole(four_halves(group + blocks * 8u + block / 8u * 2u, part));
}
