//! How the cache stores values, and appending to it.

use super::HostKernel;
use super::isa::Isa;
use super::launch::Lists;
use crate::kernel::{Kernel, KvType};
use crate::kv_append;
use crate::params::BLOCK_TOKENS;
use half::f16;
use ragtag_hal::{EntryAbi, HostCall};
use std::marker::PhantomData;
use std::ops::Range;

/// A type of cached values, in little-endian bytes.
pub(crate) trait Stored: 'static {
    /// The type.
    const TYPE: KvType;
    /// Bytes of a value.
    const BYTES: usize;
    /// One value.
    type One: AsRef<[u8]> + Copy;
    /// Sixteen values.
    type Lanes: 'static;

    /// Bytes as lanes; a rest is left out.
    fn lanes(bytes: &[u8]) -> &[Self::Lanes];
    /// Loads.
    fn load<S: Isa>(s: S, lanes: &Self::Lanes) -> S::F;
    /// Value `at` of some bytes.
    fn get(bytes: &[u8], at: usize) -> f32;
    /// Rounds to the type.
    fn encode<S: Isa>(s: S, values: &[f32; 16]) -> [Self::One; 16];
}

/// f32.
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

/// f16.
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
        s.to_f16(s.load(values)).map(u16::to_le_bytes)
    }
}

/// Appends keys and values.
pub(crate) struct Append<E>(PhantomData<E>);

impl<E: Stored> HostKernel for Append<E> {
    const KERNEL: Kernel = Kernel::KvAppend(E::TYPE);

    fn abi() -> &'static EntryAbi {
        match E::TYPE {
            KvType::F32 => &kv_append::ABI_F32,
            KvType::F16 => &kv_append::ABI_F16,
        }
    }
    fn grid(constants: &[u32]) -> [u32; 3] {
        kv_append::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, sequences, table_blocks, logit_rows, kv_heads, head_dim, cache_blocks] = call.constants
        else {
            return;
        };
        let (kv_heads, head_dim) = (kv_heads as usize, head_dim as usize);
        // SAFETY: nobody writes these; any bits are values of these types.
        let (params, k, v) = unsafe { (call.read::<u32>(0), call.read::<f32>(1), call.read::<f32>(2)) };
        let lists = Lists::new(params, [rows, sequences, table_blocks, logit_rows]);
        for head in groups.start as usize..groups.end as usize {
            for row in 0..lists.rows() {
                let position = lists.position(row);
                let block =
                    lists.table(lists.sequence(row)).and_then(|table| table.get(position / BLOCK_TOKENS));
                let Some(block) = block.filter(|block| **block < cache_blocks) else { continue };
                let bytes = head_dim * BLOCK_TOKENS * E::BYTES;
                let at = (*block as usize * kv_heads + head) * bytes;
                // SAFETY: each group writes its own head of every block.
                let (keys, values) =
                    unsafe { (call.write::<u8>(3, at..at + bytes), call.write::<u8>(4, at..at + bytes)) };
                let (from, slot) = ((row * kv_heads + head) * head_dim, position % BLOCK_TOKENS);
                put::<S, E>(s, &k[from..][..head_dim], keys, |dim| dim * BLOCK_TOKENS + slot);
                put::<S, E>(s, &v[from..][..head_dim], values, |dim| slot * head_dim + dim);
            }
        }
    }
}

/// Writes the values of one head to where `place` says.
#[inline(always)]
fn put<S: Isa, E: Stored>(s: S, values: &[f32], out: &mut [u8], place: impl Fn(usize) -> usize) {
    for (i, values) in values.chunks(16).enumerate() {
        let mut lanes = [0.0; 16];
        lanes[..values.len()].copy_from_slice(values);
        for (j, one) in E::encode(s, &lanes).iter().take(values.len()).enumerate() {
            out[place(i * 16 + j) * E::BYTES..][..E::BYTES].copy_from_slice(one.as_ref());
        }
    }
}
