// Q3_K: 3-bit quants, then i8 scales of both halves, then f16 d per 256 columns.

const OFFSET: i32 = 4;
const UNEQUAL: bool = true;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return (columns / 256u * 114u + 3u) & ~3u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let at = group + block * 12u + part;
    let shift = pair % 2u * 3u;
    let low = bits(at + pair / 2u * 4u, shift, 0x07070707u);
    if pair < 2u { return Pair(low, bits(at + 8u, shift, 0x07070707u)); }
    return Pair(low, bits(at + pair % 2u * 4u, 6u, 0x03030303u) | bits(at + 8u, pair + 2u, 0x04040404u));
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    let d = four_halves(group + blocks * 14u + block / 8u * 2u, part);
    let subs = group + blocks * 12u + block * 2u;
    let first = d * vec4<f32>(unpack4xI8(weights[subs][part]));
    let last = d * vec4<f32>(unpack4xI8(weights[subs + 1u][part]));
    return Scales(first, last, vec4<f32>(), vec4<f32>());
}
