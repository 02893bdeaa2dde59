//! Decodes and encodes tensors in file format. [`TensorType`] lists the formats.

mod dequantise;
mod quantise;

pub use crate::types::TensorType;
pub use dequantise::{SizeError, dequantise};
pub(crate) use dequantise::{fives, half_at, k_scale};
pub use quantise::quantise;
pub(crate) use quantise::{
    WithMinima, WithScales, inverse_of, largest, pack_bits, pack_fives, pack_nibbles, put_half, quants,
    range, rounded,
};
