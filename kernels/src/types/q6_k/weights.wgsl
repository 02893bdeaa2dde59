// Q6_K: nibbles, then pairs of high bits, then i8 scales of both halves, then f16 d per 256 columns.

const OFFSET: i32 = 32;
const UNEQUAL: bool = true;
const MINIMA: bool = false;

fn group_vectors(columns: u32) -> u32 { return (columns / 256u * 210u + 3u) & ~3u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let words = nibbles(group, block, pair, part);
    let at = group + blocks * 16u + block * 8u + pair % 2u * 4u + part;
    let shift = pair / 2u * 2u;
    return Pair(
        words.low | (bits(at, shift, 0x03030303u) << vec4<u32>(4u)),
        words.high | (bits(at, shift + 4u, 0x03030303u) << vec4<u32>(4u))
    );
}

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    let d = four_halves(group + blocks * 26u + block / 8u * 2u, part);
    let subs = group + blocks * 24u + block * 2u;
    let first = d * vec4<f32>(unpack4xI8(weights[subs][part]));
    let last = d * vec4<f32>(unpack4xI8(weights[subs + 1u][part]));
    return Scales(first, last, vec4<f32>(), vec4<f32>());
}
