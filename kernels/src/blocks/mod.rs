//! Tensor types of GGUF files: values and bytes per block.
//!
//! Source of the formats: the GGUF specification and the type table of ggml (`ggml_type`).

mod dequantise;
mod quantise;

pub use dequantise::{SizeError, dequantise};
pub(crate) use dequantise::{k_scale, tq1_0_quants};
pub use quantise::quantise;

use serde::{Deserialize, Serialize};
use std::fmt;

/// Storage format of a weight tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types)] // the field writes them so
pub enum TensorType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 32 values: f16 scale, int8 quants.
    Q8_0,
    /// 32 values: f16 scale, 4-bit quants minus 8.
    Q4_0,
    /// 32 values: f16 scale and minimum, 4-bit quants.
    Q4_1,
    /// 32 values: f16 scale, 5-bit quants minus 16.
    Q5_0,
    /// 32 values: f16 scale and minimum, 5-bit quants.
    Q5_1,
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 4-bit quants.
    Q4_K,
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 5-bit quants.
    Q5_K,
    /// 256 values in 16 sub-blocks: f16 scale, int8 sub-scales, 6-bit quants minus 32.
    Q6_K,
    /// 256 values: f16 scale, quants minus 1 (ternary), five per byte.
    TQ1_0,
    /// 256 values: f16 scale, 2-bit quants minus 1 (ternary).
    TQ2_0,
}

impl TensorType {
    /// All supported types.
    pub const ALL: [TensorType; 13] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::TQ1_0,
        TensorType::TQ2_0,
    ];

    /// Returns the field's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            TensorType::F32 => "F32",
            TensorType::F16 => "F16",
            TensorType::BF16 => "BF16",
            TensorType::Q8_0 => "Q8_0",
            TensorType::Q4_0 => "Q4_0",
            TensorType::Q4_1 => "Q4_1",
            TensorType::Q5_0 => "Q5_0",
            TensorType::Q5_1 => "Q5_1",
            TensorType::Q4_K => "Q4_K",
            TensorType::Q5_K => "Q5_K",
            TensorType::Q6_K => "Q6_K",
            TensorType::TQ1_0 => "TQ1_0",
            TensorType::TQ2_0 => "TQ2_0",
        }
    }

    /// Returns the type's number in GGUF files.
    pub fn gguf_id(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q5_0 => 6,
            TensorType::Q5_1 => 7,
            TensorType::Q8_0 => 8,
            TensorType::Q4_K => 12,
            TensorType::Q5_K => 13,
            TensorType::Q6_K => 14,
            TensorType::BF16 => 30,
            TensorType::TQ1_0 => 34,
            TensorType::TQ2_0 => 35,
        }
    }

    /// Returns the type with this number in GGUF files, if it is supported.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.gguf_id() == id)
    }

    /// Returns the values per block.
    pub fn block_values(self) -> usize {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => 1,
            TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
                32
            }
            TensorType::Q4_K
            | TensorType::Q5_K
            | TensorType::Q6_K
            | TensorType::TQ1_0
            | TensorType::TQ2_0 => 256,
        }
    }

    /// Returns the bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::BF16 => 2,
            TensorType::Q8_0 => 34,
            TensorType::Q4_0 => 18,
            TensorType::Q4_1 => 20,
            TensorType::Q5_0 => 22,
            TensorType::Q5_1 => 24,
            TensorType::Q4_K => 144,
            TensorType::Q5_K => 176,
            TensorType::Q6_K => 210,
            TensorType::TQ1_0 => 54,
            TensorType::TQ2_0 => 66,
        }
    }

    /// Returns the bytes of `values` values, or `None` if they do not fill whole blocks or the size
    /// overflows.
    pub fn bytes(self, values: u64) -> Option<u64> {
        let block = self.block_values() as u64;
        if !values.is_multiple_of(block) {
            return None;
        }
        (values / block).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
