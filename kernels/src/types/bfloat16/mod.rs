//! BF16. `Rows16`: 16 × bf16 value per column.

use super::{Row, float16};
use crate::cpu::formats::plain;
use crate::layout::section;
use half::bf16;

pub(super) const ROW: Row = Row {
    name: "BF16",
    gguf_id: 30,
    file_type: 32,
    block_values: 1,
    block_bytes: 2,
    scales: &[],
    dequantise: |b, out| out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
    quantise: |values, out| out.copy_from_slice(&bf16::from_f32(values[0]).to_le_bytes()),
    sections: &[section(1, 32)],
    pack: float16::pack,
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: "",
    codec_c: "",
    decode_wgsl: "",
    encode_wgsl: "",
};

plain!(BF16, 2, load_bf16);
