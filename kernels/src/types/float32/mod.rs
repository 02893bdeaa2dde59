//! F32. `Rows16`: 16 × f32 value per column.

use super::{Row, TensorType};
use crate::cpu::formats::plain;
use crate::layout::{COLUMN_BLOCK, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "F32",
    gguf_id: 0,
    file_type: 0,
    block_values: 1,
    block_bytes: 4,
    scales: &[],
    dequantise: |b, out| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    quantise: |values, out| out.copy_from_slice(&values[0].to_le_bytes()),
    sections: &[section(1, 64)],
    pack: |layout, source, out| {
        pack_with::<{ TensorType::F32 as usize }>(layout, source, out, |unit, [out, ..]| {
            unit.interleave::<4, COLUMN_BLOCK>(0, out);
        })
    },
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: "",
    codec_c: "",
    decode_wgsl: "",
    encode_wgsl: "",
};

plain!(F32, 4, load_f32);
