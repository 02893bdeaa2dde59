// Q2_K: 2-bit quants, then a byte per half block with its scale and minimum, then f16 d and dmin per 256
// columns.

const OFFSET: i32 = 0;
const UNEQUAL: bool = true;
const MINIMA: bool = true;

fn group_vectors(columns: u32) -> u32 { return columns / 256u * 84u; }

fn pair_words(group: u32, blocks: u32, block: u32, pair: u32, part: u32) -> Pair {
    let at = group + block * 8u + part;
    return Pair(bits(at, pair * 2u, 0x03030303u), bits(at + 4u, pair * 2u, 0x03030303u));
}

fn low_nibbles(bytes: u32) -> vec4<f32> { return vec4<f32>(unpack4xU8(bytes & 0x0f0f0f0fu)); }

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    let tops = group + blocks * 10u + block / 8u * 4u;
    let d = four_halves(tops, part);
    let dmin = four_halves(tops + 2u, part);
    let first = weights[group + blocks * 8u + block * 2u][part];
    let last = weights[group + blocks * 8u + block * 2u + 1u][part];
    return Scales(
        d * low_nibbles(first), d * low_nibbles(last), dmin * low_nibbles(first >> 4u), dmin * low_nibbles(last >> 4u)
    );
}
