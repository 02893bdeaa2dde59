//! Table of tensor types: one folder and one row per type.
//!
//! A folder contains all code for one type: its format in files, its resident layout, and its readers for the
//! CPU, the C family and WGSL. The rest of the crate either iterates over the rows of the table or uses the
//! row of one type.
//!
//! Sources of the formats: the GGUF specification and the type table of ggml (`ggml_type`).

/// Returns the source that reads two rows of weights of a type for matrix units. The macro `TYPE_$name`
/// selects the type's code in `pairs_by_type.cu`.
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
mod f8_e4m3;
mod float16;
mod float32;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
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

use crate::blocks::put_half;
use crate::layout::{Resident, Section};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Properties of a tensor type.
pub(crate) struct Row {
    /// Name in GGUF and in messages.
    pub name: &'static str,
    /// Number in GGUF files, or [`NOT_IN_GGUF`].
    pub gguf_id: u32,
    /// Value of `general.file_type` (llama.cpp's `llama_ftype`) for a file that mainly contains this type, or
    /// [`NOT_IN_GGUF`].
    pub file_type: u32,
    pub block_values: usize,
    pub block_bytes: usize,
    /// Scales of a block.
    pub scales: &'static [BlockScale],
    /// Decodes a block as the file stores it.
    pub dequantise: fn(block: &[u8], out: &mut [f32]),
    /// Encodes finite `values` as a block in file format.
    pub quantise: fn(values: &[f32], block: &mut [u8]),
    /// Sections of a `Rows16` group, in the order in which they are stored.
    pub sections: &'static [Section],
    /// Packs rows in file format into `Rows16` groups.
    pub pack: fn(layout: &Resident, source: &[u8], out: &mut [u8]),
    /// Source that reads resident weights in the C family. It defines the functions that
    /// `c_family/weights/quantised.cl` or `plain.cl` lists.
    pub c: &'static str,
    /// Source that reads resident weights in WGSL. It defines the functions that
    /// `wgsl/weights/quantised.wgsl` or `row_major.wgsl` lists.
    pub wgsl: &'static str,
    /// Source that reads two rows of weights for matrix units in CUDA C++. This field and all fields below it
    /// are empty for types without blocks, and for types whose quants are no integers.
    pub pairs: &'static str,
    /// Source that decodes and encodes file blocks in the C family. It defines the functions that
    /// `file_blocks/decode.cl` and `encode.cl` list.
    pub codec_c: &'static str,
    /// Source that decodes file blocks in WGSL. It defines the functions that `file_blocks/decode.wgsl`
    /// lists.
    pub decode_wgsl: &'static str,
    /// Source that encodes file blocks in WGSL. It defines the functions that `file_blocks/encode.wgsl`
    /// lists.
    pub encode_wgsl: &'static str,
}

/// Number of a type that GGUF files cannot contain.
const NOT_IN_GGUF: u32 = u32::MAX;

/// A scale of a block. If all scales of a block have their typical values with the same random sign, and all
/// other bytes are random, a block decodes to values with mean 0 and a standard deviation of about 1.
pub struct BlockScale {
    /// Byte offset in the block.
    at: usize,
    /// Typical value.
    typical: f32,
    /// Writes a value at a byte of a block.
    write: fn(block: &mut [u8], at: usize, value: f32),
}

impl BlockScale {
    /// Writes the scale's typical value times `factor` to `block`.
    pub fn put_typical(&self, block: &mut [u8], factor: f32) {
        self.put(block, self.typical * factor);
    }

    /// Writes `value`, or the nearest value that the scale can have, to `block`.
    pub fn put(&self, block: &mut [u8], value: f32) {
        (self.write)(block, self.at, value);
    }
}

/// Creates an f16 scale at byte `at`.
const fn half(at: usize, typical: f32) -> BlockScale {
    BlockScale { at, typical, write: put_half }
}

/// Defines [`TensorType`] and the macro `each_type!`. The macro passes the names of all types to another
/// macro.
macro_rules! table {
    ($d:tt; $($(#[doc = $doc:literal])* $name:ident $module:ident;)*) => {
        /// Storage format of a weight tensor in a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types)] // Standard names in this field.
        pub enum TensorType {
            $($(#[doc = $doc])* $name,)*
        }

        impl TensorType {
            /// All supported types.
            pub const ALL: [TensorType; [$(stringify!($name)),*].len()] = [$(TensorType::$name),*];

            /// Returns the type's row of the table.
            pub(crate) const fn row(self) -> &'static Row {
                match self {
                    $(TensorType::$name => &$module::ROW,)*
                }
            }
        }

        /// Expands the macro `callback` with the given arguments, followed by the names of all types.
        macro_rules! each_type {
            ($d callback:ident $d($d args:tt)*) => { $d callback! { $d($d args)* $($name)* } };
        }
        pub(crate) use each_type;

        /// Readers of weights for the CPU, one module per type.
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
    /// 32 values: f32 scale, 8-bit floats with four exponent bits.
    F8_E4M3 f8_e4m3;
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
    /// 256 values in 16 sub-blocks: f16 scale and minimum, 4-bit sub-scales and sub-minima, 2-bit quants.
    Q2_K q2_k;
    /// 256 values in 16 sub-blocks: f16 scale, 6-bit sub-scales minus 32, 3-bit quants minus 4.
    Q3_K q3_k;
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 4-bit quants.
    Q4_K q4_k;
    /// 256 values in 8 sub-blocks: f16 scale and minimum, 6-bit sub-scales and sub-minima, 5-bit quants.
    Q5_K q5_k;
    /// 256 values in 16 sub-blocks: f16 scale, int8 sub-scales, 6-bit quants minus 32.
    Q6_K q6_k;
    /// 32 values: f16 scale, 4-bit indices into a table of values.
    IQ4_NL iq4_nl;
    /// 256 values in 8 sub-blocks: f16 scale, 6-bit sub-scales minus 32, 4-bit indices into a table.
    IQ4_XS iq4_xs;
    /// 32 values: power of two as the scale, 4-bit floats.
    MXFP4 mxfp4;
    /// 256 values: f16 scale, ternary quants (0 to 2) minus 1, five per byte.
    TQ1_0 tq1_0;
    /// 256 values: f16 scale, ternary quants (0 to 2) minus 1, in 2 bits each.
    TQ2_0 tq2_0;
}

impl TensorType {
    /// Returns the standard name of the type.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the types that GGUF files can contain.
    pub fn in_gguf() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|t| t.gguf_id() != NOT_IN_GGUF)
    }

    /// Returns whether the values of blocks are integers with scales, so that products can take int8
    /// activations.
    pub fn has_integer_quants(self) -> bool {
        !self.row().pairs.is_empty()
    }

    /// Returns the number of the type in GGUF files. Types that are not [in GGUF](Self::in_gguf) have a
    /// number that no file can contain.
    pub fn gguf_id(self) -> u32 {
        self.row().gguf_id
    }

    /// Returns the type with number `id` in GGUF files, if it is supported.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::in_gguf().find(|t| t.gguf_id() == id)
    }

    /// Returns the value of `general.file_type` for a file that mainly contains this type.
    pub fn gguf_file_type(self) -> u32 {
        self.row().file_type
    }

    /// Returns the number of values per block.
    pub const fn block_values(self) -> usize {
        self.row().block_values
    }

    /// Returns the number of bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Returns the scales of a block.
    pub fn scales(self) -> &'static [BlockScale] {
        self.row().scales
    }

    /// Returns the number of bytes that `values` values occupy. Returns `None` if `values` is not a whole
    /// number of blocks, or if the number of bytes overflows.
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
                tensor_type.scales().iter().for_each(|scale| scale.put_typical(block, 1.0));
            }
            let mut values = vec![0.0; 1 << 18];
            dequantise(tensor_type, &file, &mut values).unwrap();
            let square = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
            // Scales of MXFP4 are powers of two.
            let most = if tensor_type == TensorType::MXFP4 { 0.5 } else { 0.02 };
            assert!((square.sqrt() - 1.0).abs() < most, "{tensor_type}: {}", square.sqrt());
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
