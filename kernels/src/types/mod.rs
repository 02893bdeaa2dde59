//! Table of tensor types: one folder and one row per type.
//!
//! A folder holds all that is specific to a type: its format in files, its resident layout, and its readers
//! for the CPU, for the C family and for WGSL. The rest of the crate iterates over the table or asks it.
//!
//! Sources of the formats: the GGUF specification and the type table of ggml (`ggml_type`).

/// Reader of two rows of a type that `pairs_by_type.cu` knows by its macro.
macro_rules! pairs {
    ($name:literal) => {
        concat!(
            "#define TYPE_",
            $name,
            "\n\n",
            include_str!("../../c_family/weights/pairs.cu"),
            include_str!("../../c_family/weights/pairs_by_type.cu")
        )
    };
}

mod bfloat16;
mod float16;
mod float32;
mod iq4_nl;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use crate::layout::{Resident, Section};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Properties of a tensor type.
pub(crate) struct Row {
    /// Name in GGUF and in messages.
    pub name: &'static str,
    /// Number in GGUF files.
    pub gguf_id: u32,
    /// Value of `general.file_type` (llama.cpp's `llama_ftype`) for a file of mostly this type.
    pub file_type: u32,
    pub block_values: usize,
    pub block_bytes: usize,
    /// Byte offsets of the f16 scales of a block, each with its value for a standard deviation of 1. The other
    /// bytes are random and the sign is common to all scales.
    pub scales: &'static [(usize, f32)],
    /// Decodes a block of a file.
    pub dequantise: fn(block: &[u8], out: &mut [f32]),
    /// Encodes a block of a file from finite values.
    pub quantise: fn(values: &[f32], block: &mut [u8]),
    /// Sections of a `Rows16` group, in order.
    pub sections: &'static [Section],
    /// Packs file rows into `Rows16` groups.
    pub pack: fn(layout: &Resident, source: &[u8], out: &mut [u8]),
    /// Reader of resident weights in the C family: the functions that `c_family/weights/quantised.cl` or
    /// `plain.cl` lists.
    pub c: &'static str,
    /// Reader of resident weights in WGSL: the functions that `wgsl/weights/quantised.wgsl` lists, or those of
    /// `f32.wgsl`.
    pub wgsl: &'static str,
    /// Reader of two rows for matrix units in CUDA C++. Empty for types without blocks, like all below.
    pub pairs: &'static str,
    /// Decoder and encoder of file blocks in the C family: the functions that `file_blocks/decode.cl` and
    /// `encode.cl` list.
    pub codec_c: &'static str,
    /// Decoder of file blocks in WGSL: the functions that `file_blocks/decode.wgsl` lists.
    pub decode_wgsl: &'static str,
    /// Encoder of file blocks in WGSL: the functions that `file_blocks/encode.wgsl` lists.
    pub encode_wgsl: &'static str,
}

/// Defines [`TensorType`], and `each_type!`, which passes all types to another macro.
macro_rules! table {
    ($d:tt; $($(#[doc = $doc:literal])* $name:ident $module:ident;)*) => {
        /// Storage format of a weight tensor in a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types)] // the field writes them so
        pub enum TensorType {
            $($(#[doc = $doc])* $name,)*
        }

        impl TensorType {
            /// All supported types.
            pub const ALL: [TensorType; [$(stringify!($name)),*].len()] = [$(TensorType::$name),*];

            /// Returns its row of the table.
            pub(crate) const fn row(self) -> &'static Row {
                match self {
                    $(TensorType::$name => &$module::ROW,)*
                }
            }
        }

        /// Expands a macro with its arguments and then the names of all types.
        macro_rules! each_type {
            ($d callback:ident $d($d args:tt)*) => { $d callback! { $d($d args)* $($name)* } };
        }
        pub(crate) use each_type;

        /// CPU readers.
        pub(crate) mod cpu {
            $(pub(crate) use super::$module::$name;)*
        }
    };
}

table! { $;
    /// IEEE single precision.
    F32 float32;
    /// IEEE half precision.
    F16 float16;
    /// bfloat16.
    BF16 bfloat16;
    /// 32 values: f16 scale, int8 quants.
    Q8_0 q8_0;
    /// 32 values: f16 scale, 4-bit quants minus 8.
    Q4_0 q4_0;
    /// 32 values: f16 scale and minimum, 4-bit quants.
    Q4_1 q4_1;
    /// 32 values: f16 scale, 5-bit quants minus 16.
    Q5_0 q5_0;
    /// 32 values: f16 scale and minimum, 5-bit quants.
    Q5_1 q5_1;
    /// 256 values in 16 sub-blocks: f16 scale, 6-bit sub-scales minus 32, 3-bit quants minus 4.
    Q3_K q3_k;
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 4-bit quants.
    Q4_K q4_k;
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 5-bit quants.
    Q5_K q5_k;
    /// 256 values in 16 sub-blocks: f16 scale, int8 sub-scales, 6-bit quants minus 32.
    Q6_K q6_k;
    /// 32 values: f16 scale, 4-bit indices of a table of values.
    IQ4_NL iq4_nl;
    /// 256 values: f16 scale, quants minus 1 (ternary), five per byte.
    TQ1_0 tq1_0;
    /// 256 values: f16 scale, 2-bit quants minus 1 (ternary).
    TQ2_0 tq2_0;
}

impl TensorType {
    /// Returns the field's name of the type.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the type's number in GGUF files.
    pub fn gguf_id(self) -> u32 {
        self.row().gguf_id
    }

    /// Returns the type with this number in GGUF files, if it is supported.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.gguf_id() == id)
    }

    /// Returns the value of `general.file_type` for a file of mostly this type.
    pub fn gguf_file_type(self) -> u32 {
        self.row().file_type
    }

    /// Returns the values per block.
    pub fn block_values(self) -> usize {
        self.row().block_values
    }

    /// Returns the bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Returns the byte offset of each f16 scale of a block, with a value for it. With these scales, all of the
    /// same random sign, a block of random bytes decodes to values with mean 0 and standard deviation 1.
    pub fn scales(self) -> &'static [(usize, f32)] {
        self.row().scales
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::dequantise;
    use crate::cases::Random;

    #[test]
    fn scales_give_random_blocks_a_deviation_of_one() {
        for tensor_type in TensorType::ALL.into_iter().filter(|t| t.block_values() > 1) {
            let mut file = Random::new(3).blocks(tensor_type, 1 << 18);
            for block in file.chunks_exact_mut(tensor_type.block_bytes()) {
                for (at, size) in tensor_type.scales() {
                    block[*at..at + 2].copy_from_slice(&half::f16::from_f32(*size).to_le_bytes());
                }
            }
            let mut values = vec![0.0; 1 << 18];
            dequantise(tensor_type, &file, &mut values).unwrap();
            let square = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
            assert!((square.sqrt() - 1.0).abs() < 0.02, "{tensor_type}: {}", square.sqrt());
        }
    }

    #[test]
    fn numbers_and_names_differ() {
        let differ = |of: fn(TensorType) -> String| {
            let mut all = TensorType::ALL.map(of).to_vec();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), TensorType::ALL.len(), "{all:?}");
        };
        differ(|t| t.name().into());
        differ(|t| t.gguf_id().to_string());
        differ(|t| t.gguf_file_type().to_string());
        assert!(TensorType::ALL.into_iter().all(|t| t.name() == format!("{t:?}")));
    }
}
