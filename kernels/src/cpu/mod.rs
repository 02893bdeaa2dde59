//! CPU kernels. Each kernel is generic over an instruction set with sixteen lanes. The crate instantiates it
//! for every instruction set.
//!
//! This module contains all unsafe code of the crate: the intrinsics, and the access to the bindings of a
//! launch.
//!
//! The unit tests of the crate only inspect the table of variants. To limit their compile time, they are
//! built without the code of the kernels. `tests/cpu.rs` tests the kernels for all instruction sets.

#![allow(clippy::needless_range_loop)] // Loops over lanes and tiles index several arrays.

mod attention;
mod attention_dense;
#[cfg(all(target_arch = "x86_64", not(test)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(test)))]
mod avx512;
mod conv2d;
mod elements;
mod elementwise;
mod experts;
mod file_blocks;
pub(crate) mod formats;
mod gemm;
mod halves;
pub(crate) mod isa;
mod kv;
mod launch;
mod lines;
mod logits;
mod matmul;
#[cfg(all(target_arch = "aarch64", not(test)))]
mod neon;
mod packed;
mod picks;
mod portable;
mod recurrent;
mod rope_append;
mod row;
mod rows;
mod split_attention;

use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel};
use crate::layout::Layout;
use crate::types::cpu::{BF16, F16};
use crate::types::{self, each_type};
use crate::variant::{Code, Grid, Variant};
use formats::{Format, Quantised};
use half::{bf16, f16};
use isa::Isa;
use packed::{Half, Int8, Packed};
use ragtag_hal::HostCall;
use std::ops::Range;

/// A kernel that is generic over the instruction set.
pub(crate) trait HostKernel: 'static {
    /// The kernel that this type implements.
    const KERNEL: Kernel;
    /// Minimum number of rows for which programs prefer the kernel. Programs never dequantize weights to f16
    /// for CPUs, because CPUs have no matrix units. They never split attention on CPUs, because a few groups
    /// keep all cores busy.
    const MIN_ROWS: u32 = 0;

    /// Returns the grid of a launch with `constants`.
    fn grid(constants: &[u32]) -> [u32; 3];
    /// Computes the work groups in `groups`.
    ///
    /// # Safety
    /// The requirements of [`HostFn`](ragtag_hal::HostFn) apply. The caller must have enabled the features of
    /// `S`.
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>);
}

/// Returns all variants, best first.
pub(crate) fn variants() -> Vec<Variant> {
    let mut out = Vec::new();
    #[cfg(all(target_arch = "x86_64", not(test)))]
    {
        add::<avx512::Avx512>(&mut out);
        add::<avx2::Avx2>(&mut out);
    }
    #[cfg(all(target_arch = "aarch64", not(test)))]
    add::<neon::Neon>(&mut out);
    add::<portable::Portable>(&mut out);
    out
}

/// Adds the variants for instruction set `S` to `out`.
fn add<S: Isa>(out: &mut Vec<Variant>) {
    macro_rules! add_types {
        ($($name:ident)*) => { $(types::cpu::$name::variants::<S>(out);)* };
    }
    each_type!(add_types);
    macro_rules! add {
        ($($kernel:ty,)*) => { $(out.push(variant::<S, $kernel>());)* };
    }
    add! {
        rows::Gather, rows::RmsNorm, rows::HeadNorm, rows::Xielu, rows::LatentRows, rows::SiluMul, rows::Add,
        halves::Product<F16>, halves::Product<BF16>,
        logits::ArgMax, logits::TopK, picks::Peaks, picks::Picks,
        split_attention::Merge, split_attention::MergeSinks,
        gemm::Gemm<f32>, gemm::Gemm<f16>, gemm::Gemm<bf16>,
        attention_dense::AttentionDense<f32>, attention_dense::AttentionDense<f16>,
        attention_dense::AttentionDense<bf16>,
        conv2d::Conv2d<f32>, conv2d::Conv2d<f16>, conv2d::Conv2d<bf16>,
        elementwise::Copy, elementwise::GatherRows, elementwise::Unary, elementwise::Binary,
        lines::Reduce, lines::SoftmaxAxis, lines::LayerNorm, elementwise::Rope,
        file_blocks::DecodeBlocks, file_blocks::EncodeBlocks, lines::Checksum,
        experts::Route, experts::GateUp, experts::Combine,
        recurrent::CausalConv, recurrent::StateScan, recurrent::GatedNorm, recurrent::GatedHeads,
    }
    packed::<S, Int8>(out);
    packed::<S, Half>(out);
    cached::<S, kv::F32, kv::F32>(out);
    cached::<S, kv::F16, kv::F16>(out);
    cached::<S, kv::Q8_0, kv::Q8_0>(out);
    cached::<S, kv::Q8_0, kv::Q4_0>(out);
    cached::<S, kv::Q4_0, kv::Q4_0>(out);
}

/// Adds the kernels that write activations of type `O`.
fn packed<S: Isa, O: Packed>(out: &mut Vec<Variant>) {
    out.push(variant::<S, rows::Quantize<O>>());
    out.push(variant::<S, rows::PackedRmsNorm<O>>());
    out.push(variant::<S, rows::PackedSiluMul<O>>());
    out.push(variant::<S, split_attention::PackedMerge<O>>());
}

/// Adds the kernels that access a KV cache.
fn cached<S: Isa, K: kv::Stored, V: kv::Stored>(out: &mut Vec<Variant>) {
    out.push(variant::<S, rope_append::RopeAppend<K, V>>());
    out.push(variant::<S, attention::Attention<K, V>>());
    out.push(variant::<S, split_attention::Partial<K, V>>());
}

/// Adds the kernels that every tensor type has, instantiated for the reader `W`.
pub(crate) fn plain<S: Isa, W: Format>(out: &mut Vec<Variant>) {
    out.push(variant::<S, rows::Embed<W>>());
    out.push(variant::<S, matmul::Exact<W>>());
    out.push(variant::<S, experts::ExpertMatMul<W, experts::Floats>>());
}

/// Adds the kernels that every tensor type with blocks has, instantiated for the reader `W`.
pub(crate) fn blocks<S: Isa, W: Format>(out: &mut Vec<Variant>) {
    plain::<S, W>(out);
    out.push(variant::<S, halves::Widen<W>>());
}

/// Adds all kernels of a tensor type with integer quants, instantiated for the reader `W`.
pub(crate) fn quantised<S: Isa, W: Quantised>(out: &mut Vec<Variant>) {
    blocks::<S, W>(out);
    out.push(variant::<S, matmul::Fast<W>>());
    out.push(variant::<S, experts::ExpertMatMul<W, experts::Int8Rows>>());
}

fn variant<S: Isa, K: HostKernel>() -> Variant {
    let layout = K::KERNEL.layout(|_| Layout::Rows16);
    Variant {
        kernel: K::KERNEL,
        name: S::NAME,
        class: K::KERNEL.class(),
        requires: S::FEATURES,
        abi: K::KERNEL.abi(layout),
        grid: Grid::Fixed(K::grid),
        layout,
        min_rows: K::MIN_ROWS,
        max_rows: u32::MAX,
        code: Code::Host(S::function::<K>()),
    }
}

/// Returns the kernel that multiplies `tensor_type` weights by `activations`.
const fn product(tensor_type: TensorType, activations: Activations) -> Kernel {
    Kernel::MatMul(tensor_type, activations)
}
