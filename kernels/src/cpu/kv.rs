//! Storage types of cached keys and values.

use super::isa::Isa;
use super::packed::rounded;
use crate::kernel::CacheType;
use crate::params::BLOCK_TOKENS;
use half::f16;

/// Number of dimensions that share a scale in a quantized cache.
const BLOCK: usize = crate::kv::QUANTISED_DIMENSIONS as usize;

/// A type in which the KV cache stores keys or values. The slices of bytes are the part of a cache block that
/// belongs to one kv head.
pub(crate) trait Stored: 'static {
    /// Storage type.
    const TYPE: CacheType;
    /// A part of the cache, split into groups of sixteen values.
    type Lanes<'a>: Copy;

    /// Splits a part. A head whose dimension is not a multiple of 16 has incomplete groups of values.
    fn lanes(part: &[u8], head_dim: usize) -> Self::Lanes<'_>;
    /// Loads the keys of sixteen positions in dimension `dim`.
    fn keys<S: Isa>(s: S, lanes: Self::Lanes<'_>, dim: usize) -> S::F;
    /// Loads sixteen dimensions of a value. `at` counts such groups from the start of the part.
    fn values<S: Isa>(s: S, lanes: Self::Lanes<'_>, at: usize) -> S::F;
    /// Returns one dimension of a key.
    fn key(part: &[u8], head_dim: usize, slot: usize, dim: usize) -> f32;
    /// Returns one dimension of a value.
    fn value(part: &[u8], head_dim: usize, slot: usize, dim: usize) -> f32;
    /// Rounds the key of one position and writes it to a part.
    fn put_key<S: Isa>(s: S, key: &[f32], part: &mut [u8], slot: usize);
    /// Rounds the value of one position and writes it to a part.
    fn put_value<S: Isa>(s: S, value: &[f32], part: &mut [u8], slot: usize);
}

/// Returns the number of bytes in the part of a cache block that belongs to one kv head.
#[inline(always)]
pub(super) fn part_bytes<E: Stored>(head_dim: usize) -> usize {
    E::TYPE.bytes((head_dim * BLOCK_TOKENS) as u64) as usize
}

/// Rounds `values` sixteen at a time with `encode`, and writes value `i` to index `place(i)` of `out`.
#[inline(always)]
fn put<const N: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; 16]) -> [[u8; N]; 16],
    place: impl Fn(usize) -> usize,
) {
    let out = out.as_chunks_mut::<N>().0;
    for (i, values) in values.chunks(16).enumerate() {
        let mut lanes = [0.0; 16];
        lanes[..values.len()].copy_from_slice(values);
        for (j, one) in encode(&lanes).iter().take(values.len()).enumerate() {
            out[place(i * 16 + j)] = *one;
        }
    }
}

/// Implements the storage of values without scales.
macro_rules! plain {
    (
        $name:ident, $bytes:literal, $load:ident, |$one:ident| $get:expr,
        |$s:ident, $values:ident| $encode:expr
    ) => {
        impl Stored for $name {
            const TYPE: CacheType = CacheType::$name;
            type Lanes<'a> = &'a [[u8; 16 * $bytes]];

            #[inline(always)]
            fn lanes(part: &[u8], head_dim: usize) -> Self::Lanes<'_> {
                // The length spares a check for each key.
                &part.as_chunks().0[..head_dim]
            }
            #[inline(always)]
            fn keys<S: Isa>(s: S, lanes: Self::Lanes<'_>, dim: usize) -> S::F {
                s.$load(&lanes[dim])
            }
            #[inline(always)]
            fn values<S: Isa>(s: S, lanes: Self::Lanes<'_>, at: usize) -> S::F {
                s.$load(&lanes[at])
            }
            #[inline(always)]
            fn key(part: &[u8], _: usize, slot: usize, dim: usize) -> f32 {
                let $one = part.as_chunks().0[dim * BLOCK_TOKENS + slot];
                $get
            }
            #[inline(always)]
            fn value(part: &[u8], head_dim: usize, slot: usize, dim: usize) -> f32 {
                let $one = part.as_chunks().0[slot * head_dim + dim];
                $get
            }
            #[inline(always)]
            fn put_key<S: Isa>($s: S, key: &[f32], part: &mut [u8], slot: usize) {
                put::<$bytes>(key, part, |$values| $encode, |dim| dim * BLOCK_TOKENS + slot);
            }
            #[inline(always)]
            fn put_value<S: Isa>($s: S, value: &[f32], part: &mut [u8], slot: usize) {
                put::<$bytes>(value, part, |$values| $encode, |dim| slot * value.len() + dim);
            }
        }
    };
}

/// f32 storage.
pub(crate) struct F32;

plain!(F32, 4, load_f32, |one| f32::from_le_bytes(one), |_s, values| values.map(f32::to_le_bytes));

/// f16 storage.
pub(crate) struct F16;

plain!(F16, 2, load_f16, |one| f16::from_le_bytes(one).to_f32(), |s, values| {
    rounded(s, s.load(values)).map(u16::to_le_bytes)
});

/// Integer quants of a quantized cache. `BYTES` is the number of bytes of quants per 32 dimensions.
pub(crate) trait CacheQuants: 'static {
    /// Storage type.
    const TYPE: CacheType;
    /// Number of bytes of quants per block.
    const BYTES: usize;
    /// Returns which byte of a block holds the quant of dimension `dim` of the block.
    fn byte(dim: usize) -> usize;
    /// Converts the quants of sixteen bytes to floats. They all belong to `dim` in the first or in the second
    /// half of a block.
    fn load<S: Isa>(s: S, bytes: &[u8; 16], dim: usize) -> S::F;
    /// Returns the quant of dimension `dim` of a block from its byte.
    fn quant(byte: u8, dim: usize) -> f32;
    /// Quantizes finite values. Returns the scale before it is rounded to f16, and the bytes of the quants.
    /// Only the first `BYTES` bytes count.
    fn encode(values: &[f32; BLOCK]) -> (f32, [u8; BLOCK]);
}

/// Q8_0 storage.
pub(crate) struct Q8_0;

impl CacheQuants for Q8_0 {
    const TYPE: CacheType = CacheType::Q8_0;
    const BYTES: usize = 32;

    #[inline(always)]
    fn byte(dim: usize) -> usize {
        dim
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, bytes: &[u8; 16], _: usize) -> S::F {
        s.load_i8(bytes)
    }
    #[inline(always)]
    fn quant(byte: u8, _: usize) -> f32 {
        f32::from(byte.cast_signed())
    }
    #[inline(always)]
    fn encode(values: &[f32; BLOCK]) -> (f32, [u8; BLOCK]) {
        let scale = crate::blocks::largest(values).abs() / 127.0;
        let inverse = crate::blocks::inverse_of(scale);
        (scale, values.map(|x| (crate::blocks::rounded(x * inverse) as i8).cast_unsigned()))
    }
}

/// Q4_0 storage.
pub(crate) struct Q4_0;

impl CacheQuants for Q4_0 {
    const TYPE: CacheType = CacheType::Q4_0;
    const BYTES: usize = 16;

    #[inline(always)]
    fn byte(dim: usize) -> usize {
        dim % 16
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, bytes: &[u8; 16], dim: usize) -> S::F {
        let mut quants = *bytes;
        for quant in &mut quants {
            *quant = *quant >> (dim / 16 * 4) & 15;
        }
        s.sub(s.load_u8(&quants), s.splat(8.0))
    }
    #[inline(always)]
    fn quant(byte: u8, dim: usize) -> f32 {
        f32::from(byte >> (dim / 16 * 4) & 15) - 8.0
    }
    #[inline(always)]
    fn encode(values: &[f32; BLOCK]) -> (f32, [u8; BLOCK]) {
        let scale = crate::blocks::largest(values) / -8.0;
        let inverse = crate::blocks::inverse_of(scale);
        let quants = values.map(|x| (x * inverse + 8.5).clamp(0.0, 15.0) as u8);
        (scale, std::array::from_fn(|i| if i < 16 { quants[i] | quants[i + 16] << 4 } else { 0 }))
    }
}

/// Rounds 32 values to a scale and quants. Values saturate at the range of f16. If one of them is NaN, the
/// scale is NaN.
#[inline(always)]
fn encode<Q: CacheQuants>(values: &[f32; BLOCK]) -> ([u8; 2], [u8; BLOCK]) {
    if values.iter().any(|value| value.is_nan()) {
        return (f16::NAN.to_le_bytes(), [0; BLOCK]);
    }
    let largest = f16::MAX.to_f32();
    let (scale, quants) = Q::encode(&values.map(|value| value.clamp(-largest, largest)));
    (f16::from_f32(scale).to_le_bytes(), quants)
}

/// Returns where the scales of a part start, in bytes.
#[inline(always)]
fn scales_from<Q: CacheQuants>(head_dim: usize) -> usize {
    head_dim / BLOCK * Q::BYTES * BLOCK_TOKENS
}

#[inline(always)]
fn scale_at(scales: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(scales.as_chunks().0[at]).to_f32()
}

impl<Q: CacheQuants> Stored for Q {
    const TYPE: CacheType = Q::TYPE;
    /// Quants and scales.
    type Lanes<'a> = (&'a [[u8; 16]], &'a [u8]);

    #[inline(always)]
    fn lanes(part: &[u8], head_dim: usize) -> Self::Lanes<'_> {
        let (quants, scales) = part.split_at(scales_from::<Q>(head_dim));
        (quants.as_chunks().0, scales)
    }
    #[inline(always)]
    fn keys<S: Isa>(s: S, (quants, scales): Self::Lanes<'_>, dim: usize) -> S::F {
        let (block, dim) = (dim / BLOCK, dim % BLOCK);
        let scale = s.load_f16(&scales.as_chunks().0[block]);
        s.mul(Q::load(s, &quants[block * Q::BYTES + Q::byte(dim)], dim), scale)
    }
    #[inline(always)]
    fn values<S: Isa>(s: S, (quants, scales): Self::Lanes<'_>, at: usize) -> S::F {
        let (block, dim) = (at / 2, at % 2 * 16);
        let quants = Q::load(s, &quants[(block * Q::BYTES + Q::byte(dim)) / 16], dim);
        s.mul(quants, s.splat(scale_at(scales, block)))
    }
    #[inline(always)]
    fn key(part: &[u8], head_dim: usize, slot: usize, dim: usize) -> f32 {
        let (quants, scales) = part.split_at(scales_from::<Q>(head_dim));
        let (block, dim) = (dim / BLOCK, dim % BLOCK);
        let byte = quants[(block * Q::BYTES + Q::byte(dim)) * BLOCK_TOKENS + slot];
        Q::quant(byte, dim) * scale_at(scales, block * BLOCK_TOKENS + slot)
    }
    #[inline(always)]
    fn value(part: &[u8], head_dim: usize, slot: usize, dim: usize) -> f32 {
        let (quants, scales) = part.split_at(scales_from::<Q>(head_dim));
        let (block, dim) = (slot * (head_dim / BLOCK) + dim / BLOCK, dim % BLOCK);
        Q::quant(quants[block * Q::BYTES + Q::byte(dim)], dim) * scale_at(scales, block)
    }
    #[inline(always)]
    fn put_key<S: Isa>(_: S, key: &[f32], part: &mut [u8], slot: usize) {
        let (to_quants, to_scales) = part.split_at_mut(scales_from::<Q>(key.len()));
        for (block, values) in key.as_chunks().0.iter().enumerate() {
            let (scale, quants) = encode::<Q>(values);
            to_scales.as_chunks_mut().0[block * BLOCK_TOKENS + slot] = scale;
            for (i, byte) in quants[..Q::BYTES].iter().enumerate() {
                to_quants[(block * Q::BYTES + i) * BLOCK_TOKENS + slot] = *byte;
            }
        }
    }
    #[inline(always)]
    fn put_value<S: Isa>(_: S, value: &[f32], part: &mut [u8], slot: usize) {
        let (to_quants, to_scales) = part.split_at_mut(scales_from::<Q>(value.len()));
        for (block, values) in value.as_chunks().0.iter().enumerate() {
            let (scale, quants) = encode::<Q>(values);
            let at = slot * (value.len() / BLOCK) + block;
            to_scales.as_chunks_mut().0[at] = scale;
            to_quants[at * Q::BYTES..][..Q::BYTES].copy_from_slice(&quants[..Q::BYTES]);
        }
    }
}

/// Returns the pair of storage types. Kernels exist for these pairs only.
pub(super) const fn pair(keys: CacheType, values: CacheType) -> crate::kernel::KvType {
    match crate::kernel::KvType::new(keys, values) {
        Ok(pair) => pair,
        Err(_) => panic!("no kernels for this pair"),
    }
}
