//! Storage types of the KV cache, and its layout in memory.
//!
//! The cache consists of blocks of [`BLOCK_TOKENS`] positions. A *part* of a key or value buffer belongs to
//! one block and one kv head. In f32 and f16, keys are `[head dimension][16 positions]` and values are
//! `[16 positions][head dimension]`.
//!
//! Q8_0 and Q4_0 quantize 32 consecutive dimensions of a position as one file block: an f16 scale, and 32
//! signed bytes or 16 bytes with two quants each (dimensions i and i + 16). A part stores the bytes of all
//! quants first, then all scales. With n = head dimension / 32 and b bytes of quants per file block, the
//! quants of keys are `[n · b][16 positions]` and their scales `[n][16 positions]`. The quants of values are
//! `[16 positions][n · b]` and their scales `[16 positions][n]`.

use crate::abi::{IMPOSSIBLE, product};
use crate::blocks::{TensorType, dequantise, quantise};
use crate::half_rows;
use crate::params::BLOCK_TOKENS;
use half::f16;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of dimensions that share a scale in a quantized cache.
pub const QUANTISED_DIMENSIONS: u32 = 32;

/// Storage type of keys, or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheType {
    /// f32.
    F32,
    /// f16.
    F16,
    /// 8-bit quants with an f16 scale per 32 dimensions.
    Q8_0,
    /// 4-bit quants with an f16 scale per 32 dimensions.
    Q4_0,
}

impl CacheType {
    /// All storage types.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Q8_0, CacheType::Q4_0];

    /// Returns the number of bytes in 32 values, including their scale.
    const fn bytes_of_32(self) -> u64 {
        match self {
            CacheType::F32 => 128,
            CacheType::F16 => 64,
            CacheType::Q8_0 => 34,
            CacheType::Q4_0 => 18,
        }
    }

    /// Returns the number of bytes in `values` values. For quantized types, `values` is a multiple of 32.
    pub fn bytes(self, values: u64) -> u64 {
        (u128::from(values) * u128::from(self.bytes_of_32()) / 32).try_into().unwrap_or(u64::MAX)
    }

    /// Returns the type of the file blocks that hold the values, or `None` if the type is not quantized.
    pub fn quantised(self) -> Option<TensorType> {
        match self {
            CacheType::F32 | CacheType::F16 => None,
            CacheType::Q8_0 => Some(TensorType::Q8_0),
            CacheType::Q4_0 => Some(TensorType::Q4_0),
        }
    }

    /// Returns whether the type supports heads of `head_dim` dimensions.
    pub fn takes(self, head_dim: u32) -> bool {
        self.quantised().is_none() || head_dim.is_multiple_of(QUANTISED_DIMENSIONS)
    }

    /// Returns the number of bytes in a buffer of `cache_blocks` blocks, or [`IMPOSSIBLE`] if the type does
    /// not support the head dimension.
    pub(crate) fn buffer_bytes(self, cache_blocks: u32, kv_heads: u32, head_dim: u32) -> u64 {
        if !self.takes(head_dim) {
            return IMPOSSIBLE;
        }
        self.bytes(product(&[cache_blocks, kv_heads, head_dim]).saturating_mul(BLOCK_TOKENS as u64))
    }

    /// Returns the values that the cache should hold for the keys or values `row` of one head. Values beyond
    /// the range of f16 saturate, except in f32. Does not round to f16. If a quantized block contains NaN,
    /// all of its values are NaN.
    pub(crate) fn stored(self, row: &[f64]) -> Vec<f64> {
        match self {
            CacheType::F32 => row.to_vec(),
            CacheType::F16 => row.iter().map(|value| half_rows::in_range(*value)).collect(),
            CacheType::Q8_0 | CacheType::Q4_0 => {
                let row: Vec<f32> = row.iter().map(|value| *value as f32).collect();
                self.rounded(&row).into_iter().map(f64::from).collect()
            }
        }
    }

    /// Rounds the keys or values of one head to the type.
    pub(crate) fn rounded(self, row: &[f32]) -> Vec<f32> {
        match self.quantised() {
            None if self == CacheType::F32 => row.to_vec(),
            None => row.iter().map(|value| half_rows::rounded(f64::from(*value)).to_f32()).collect(),
            Some(_) => row.as_chunks().0.iter().flat_map(|values| self.values(&self.block(values))).collect(),
        }
    }

    /// Quantizes 32 values to a file block.
    fn block(self, values: &[f32; 32]) -> Vec<u8> {
        let mut block = vec![0; self.bytes_of_32() as usize];
        let in_range = values.map(|value| half_rows::in_range(f64::from(value)) as f32);
        match self.quantised() {
            Some(_) if values.iter().any(|value| value.is_nan()) => {
                block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
            }
            Some(tensor_type) => quantise(tensor_type, &in_range, &mut block).expect("one block"),
            None => unreachable!("{self} has no file blocks"),
        }
        block
    }

    /// Dequantizes a file block.
    fn values(self, block: &[u8]) -> [f32; 32] {
        let mut values = [0.0; 32];
        let tensor_type = self.quantised().expect("a quantized type");
        dequantise(tensor_type, block, &mut values).expect("one block");
        values
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8_0 => "q8_0",
            CacheType::Q4_0 => "q4_0",
        })
    }
}

/// Storage types of keys and values. Kernels exist for these pairs only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KvType {
    /// f32 keys and values.
    #[serde(rename = "f32")]
    F32,
    /// f16 keys and values.
    #[serde(rename = "f16")]
    F16,
    /// Q8_0 keys and values.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// Q8_0 keys and Q4_0 values.
    #[serde(rename = "q8_0/q4_0")]
    Q8_0Q4_0,
    /// Q4_0 keys and values.
    #[serde(rename = "q4_0")]
    Q4_0,
}

/// Two storage types for which no kernels exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a KV cache cannot have {keys} keys and {values} values (use f32, f16, q8_0 or q4_0 for both, or q8_0 \
     keys with q4_0 values)"
)]
pub struct UnsupportedPair {
    keys: CacheType,
    values: CacheType,
}

impl KvType {
    /// All pairs of storage types.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::Q8_0, KvType::Q8_0Q4_0, KvType::Q4_0];

    /// Returns the pair of two storage types.
    ///
    /// # Errors
    /// [`UnsupportedPair`] if no kernels exist for the pair.
    pub const fn new(keys: CacheType, values: CacheType) -> Result<Self, UnsupportedPair> {
        Ok(match (keys, values) {
            (CacheType::F32, CacheType::F32) => KvType::F32,
            (CacheType::F16, CacheType::F16) => KvType::F16,
            (CacheType::Q8_0, CacheType::Q8_0) => KvType::Q8_0,
            (CacheType::Q8_0, CacheType::Q4_0) => KvType::Q8_0Q4_0,
            (CacheType::Q4_0, CacheType::Q4_0) => KvType::Q4_0,
            _ => return Err(UnsupportedPair { keys, values }),
        })
    }

    /// Returns the storage type of keys.
    pub const fn keys(self) -> CacheType {
        match self {
            KvType::F32 => CacheType::F32,
            KvType::F16 => CacheType::F16,
            KvType::Q8_0 | KvType::Q8_0Q4_0 => CacheType::Q8_0,
            KvType::Q4_0 => CacheType::Q4_0,
        }
    }

    /// Returns the storage type of values.
    pub const fn values(self) -> CacheType {
        match self {
            KvType::F32 => CacheType::F32,
            KvType::F16 => CacheType::F16,
            KvType::Q8_0 => CacheType::Q8_0,
            KvType::Q8_0Q4_0 | KvType::Q4_0 => CacheType::Q4_0,
        }
    }

    /// Returns whether keys and values are quantized.
    pub fn is_quantised(self) -> bool {
        self.keys().quantised().is_some()
    }

    /// Returns whether the types support heads of `head_dim` dimensions.
    pub fn takes(self, head_dim: u32) -> bool {
        self.keys().takes(head_dim) && self.values().takes(head_dim)
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvType::Q8_0Q4_0 => write!(f, "{}/{}", self.keys(), self.values()),
            _ => self.keys().fmt(f),
        }
    }
}

/// Layout of a key buffer or a value buffer.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayout {
    /// Storage type.
    pub cache_type: CacheType,
    /// Whether the buffer holds keys.
    pub is_keys: bool,
    /// Number of dimensions of a head.
    pub head_dim: usize,
}

impl CacheLayout {
    /// Returns the index of a value in a buffer of type f32. The part is block · kv heads + kv head.
    pub fn index(&self, part: usize, slot: usize, dim: usize) -> usize {
        let in_part = if self.is_keys { dim * BLOCK_TOKENS + slot } else { slot * self.head_dim + dim };
        part * self.head_dim * BLOCK_TOKENS + in_part
    }

    /// Returns the bytes of a buffer with these values, which have the order of an f32 buffer.
    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        match self.cache_type {
            CacheType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            CacheType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            CacheType::Q8_0 | CacheType::Q4_0 => {
                let mut out = vec![0xff; self.cache_type.bytes(values.len() as u64) as usize];
                for at in self.blocks(values.len()) {
                    let block = std::array::from_fn(|i| values[self.index_in(at, i)]);
                    self.put(at, &self.cache_type.block(&block), &mut out);
                }
                out
            }
        }
    }

    /// Returns part, slot and index of each quantized block in a buffer of `values` values.
    pub(crate) fn blocks(&self, values: usize) -> impl Iterator<Item = [usize; 3]> + use<> {
        let (parts, blocks) = (values / (self.head_dim * BLOCK_TOKENS).max(1), self.head_dim / 32);
        let of_part = move |part| (0..BLOCK_TOKENS).map(move |slot| (part, slot));
        (0..parts).flat_map(of_part).flat_map(move |(part, slot)| (0..blocks).map(move |b| [part, slot, b]))
    }

    /// Returns the index of value `i` of a quantized block.
    pub(crate) fn index_in(&self, [part, slot, block]: [usize; 3], i: usize) -> usize {
        self.index(part, slot, block * 32 + i)
    }

    /// Returns where the bytes of a file block are in a buffer.
    fn places(&self, [part, slot, block]: [usize; 3]) -> Vec<usize> {
        let (blocks, bytes) = (self.head_dim / 32, self.cache_type.bytes_of_32() as usize);
        let (quants, start) = (bytes - 2, part * BLOCK_TOKENS * blocks * bytes);
        let scales = start + BLOCK_TOKENS * blocks * quants;
        let scale = if self.is_keys { block * BLOCK_TOKENS + slot } else { slot * blocks + block };
        let quant = |i: usize| match self.is_keys {
            true => (block * quants + i) * BLOCK_TOKENS + slot,
            false => (slot * blocks + block) * quants + i,
        };
        [0, 1]
            .map(|i| scales + scale * 2 + i)
            .into_iter()
            .chain((0..quants).map(|i| start + quant(i)))
            .collect()
    }

    /// Returns the file block at a place in a buffer.
    pub(crate) fn get(&self, at: [usize; 3], bytes: &[u8]) -> Vec<u8> {
        self.places(at).into_iter().map(|place| bytes[place]).collect()
    }

    /// Writes a file block to its place in a buffer.
    pub(crate) fn put(&self, at: [usize; 3], block: &[u8], bytes: &mut [u8]) {
        self.places(at).into_iter().zip(block).for_each(|(place, byte)| bytes[place] = *byte);
    }

    /// Returns the values of the file block at a place in a buffer.
    pub(crate) fn values_at(&self, at: [usize; 3], bytes: &[u8]) -> [f32; 32] {
        self.cache_type.values(&self.get(at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_names_and_parts() {
        for kv in KvType::ALL {
            assert_eq!(KvType::new(kv.keys(), kv.values()), Ok(kv));
        }
        let error = KvType::new(CacheType::Q4_0, CacheType::F16).unwrap_err().to_string();
        assert!(
            error.contains("q4_0 keys and f16 values") && error.contains("q8_0 keys with q4_0"),
            "{error}"
        );
        assert_eq!(CacheType::Q8_0.bytes(64), 68);
        assert_eq!(CacheType::F32.bytes(u64::MAX), u64::MAX);
        assert_eq!(CacheType::Q4_0.buffer_bytes(3, 2, 64), 3 * 2 * 16 * 36);
        assert_eq!(CacheType::Q4_0.buffer_bytes(3, 2, 48), IMPOSSIBLE);
        assert!(KvType::F16.takes(20) && !KvType::Q8_0Q4_0.takes(20));
    }

    #[test]
    fn every_byte_of_a_quantised_buffer_belongs_to_one_block() {
        for (cache_type, is_keys) in [(CacheType::Q8_0, true), (CacheType::Q4_0, false)] {
            let layout = CacheLayout { cache_type, is_keys, head_dim: 96 };
            let values = 2 * 16 * 96;
            let mut seen = vec![0; cache_type.bytes(values as u64) as usize];
            layout.blocks(values).flat_map(|at| layout.places(at)).for_each(|place| seen[place] += 1);
            assert!(seen.iter().all(|count| *count == 1));
        }
    }

    #[test]
    fn rounding_is_idempotent_and_nan_spoils_one_block() {
        let mut row: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        row[40] = f32::NAN;
        row[3] = f32::INFINITY;
        for cache_type in [CacheType::Q8_0, CacheType::Q4_0] {
            let once = cache_type.rounded(&row);
            assert!((once[3] / 65504.0 - 1.0).abs() < 1e-3, "{once:?}");
            assert!(once[..32].iter().all(|v| v.is_finite()) && once[32..].iter().all(|v| v.is_nan()));
            assert_eq!(cache_type.rounded(&once)[..32], once[..32]);
        }
    }
}
