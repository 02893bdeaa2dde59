//! F16. `Rows16`: 16 × f16 value per column.

use super::{Row, TensorType};
use crate::blocks::{half_at, put_half};
use crate::cpu::formats::plain;
use crate::layout::{COLUMN_BLOCK, Resident, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "F16",
    gguf_id: 1,
    file_type: 1,
    block_values: 1,
    block_bytes: 2,
    scales: &[],
    dequantise: |block, out| out[0] = half_at(block, 0),
    quantise: |values, out| put_half(out, 0, values[0]),
    sections: &[section(1, 32)],
    pack,
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: "",
    codec_c: "",
    decode_wgsl: "",
    encode_wgsl: "",
};

/// Packs values of two bytes into `Rows16` groups.
pub(super) fn pack(layout: &Resident, source: &[u8], out: &mut [u8]) {
    pack_with::<{ TensorType::F16 as usize }>(layout, source, out, |unit, [out, ..]| {
        unit.interleave::<2, COLUMN_BLOCK>(0, out);
    });
}

plain!(F16, 2, load_f16);
