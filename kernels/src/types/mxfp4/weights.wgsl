// MXFP4: nibbles that index a table of signed bytes, then exponents of 8 bits.

const OFFSET: i32 = 0;
const UNEQUAL: bool = false;
const MINIMA: bool = false;

const TABLE_0: u32 = 0x03020100u;
const TABLE_4: u32 = 0x0c080604u;
const TABLE_8: u32 = 0xfdfeff00u;
const TABLE_12: u32 = 0xf4f8fafcu;

fn group_vectors(columns: u32) -> u32 { return (columns / 32u * 17u + 3u) & ~3u; }

// The scale is half of what the exponent stands for, because the table holds doubled values.
fn block_scales(group: u32, blocks: u32, block: u32, part: u32) -> Scales {
    let exponents = vec4<u32>(unpack4xU8(weights[group + blocks * 16u + block][part]));
    let low = vec4<u32>(0x00200000u) << exponents;
    let normal = (exponents - vec4<u32>(1u)) << vec4<u32>(23u);
    return whole(bitcast<vec4<f32>>(select(normal, low, exponents < vec4<u32>(2u))));
}
