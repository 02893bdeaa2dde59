//! Storage types of cached keys and values.

use super::halves::rounded;
use super::isa::Isa;
use crate::kernel::KvType;
use half::f16;

/// A type in which the KV cache stores values, as little-endian bytes.
pub(crate) trait Stored: 'static {
    /// Cache type.
    const TYPE: KvType;
    /// Number of bytes per value.
    const BYTES: usize;
    /// Bytes of one value.
    type One: AsRef<[u8]> + Copy;
    /// Bytes of sixteen values.
    type Lanes: 'static;

    /// Splits bytes into groups of sixteen values. Ignores an incomplete group at the end.
    fn lanes(bytes: &[u8]) -> &[Self::Lanes];
    /// Loads sixteen values and converts them to f32.
    fn load<S: Isa>(s: S, lanes: &Self::Lanes) -> S::F;
    /// Returns the value at index `at` of `bytes`.
    fn get(bytes: &[u8], at: usize) -> f32;
    /// Rounds sixteen values to the storage type.
    fn encode<S: Isa>(s: S, values: &[f32; 16]) -> [Self::One; 16];
}

/// f32 storage.
pub(crate) struct Single;

impl Stored for Single {
    const TYPE: KvType = KvType::F32;
    const BYTES: usize = 4;
    type One = [u8; 4];
    type Lanes = [u8; 64];

    #[inline(always)]
    fn lanes(bytes: &[u8]) -> &[[u8; 64]] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, lanes: &[u8; 64]) -> S::F {
        s.load_f32(lanes)
    }
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> f32 {
        f32::from_le_bytes(bytes.as_chunks().0[at])
    }
    #[inline(always)]
    fn encode<S: Isa>(_: S, values: &[f32; 16]) -> [[u8; 4]; 16] {
        values.map(f32::to_le_bytes)
    }
}

/// f16 storage.
pub(crate) struct Half;

impl Stored for Half {
    const TYPE: KvType = KvType::F16;
    const BYTES: usize = 2;
    type One = [u8; 2];
    type Lanes = [u8; 32];

    #[inline(always)]
    fn lanes(bytes: &[u8]) -> &[[u8; 32]] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, lanes: &[u8; 32]) -> S::F {
        s.load_f16(lanes)
    }
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> f32 {
        f16::from_le_bytes(bytes.as_chunks().0[at]).to_f32()
    }
    #[inline(always)]
    fn encode<S: Isa>(s: S, values: &[f32; 16]) -> [[u8; 2]; 16] {
        rounded(s, s.load(values)).map(u16::to_le_bytes)
    }
}
