// IQ4_XS: nibbles that index a table of signed bytes, then i8 scales, then f16 d per 256 columns.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

const TABLE_0: u32 = 0xbfad9881u;
const TABLE_4: u32 = 0xf6eaddcfu;
const TABLE_8: u32 = 0x26190d01u;
const TABLE_12: u32 = 0x71594535u;

fn group_vectors(columns: u32) -> u32 { return (columns / 256u * 138u + 3u) & ~3u; }

fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    let d = four_halves(group + blocks * 17u + block / 8u * 2u, part);
    return whole(d * vec4<f32>(unpack4xI8(weights[group + blocks * 16u + block][part])));
}
