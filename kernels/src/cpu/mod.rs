//! CPU kernels. Each kernel is generic over an instruction set with sixteen lanes. The crate instantiates it
//! for every instruction set.
//!
//! This module contains all unsafe code of the crate: the intrinsics, and the access to the bindings of a
//! launch.
//!
//! The unit tests of the crate only inspect the table of variants. To limit their compile time, they are
//! built with only the portable kernels. `tests/cpu.rs` tests the kernels for all instruction sets.

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
mod portable;
mod rope_append;
mod rows;
mod split_attention;

use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel};
use crate::layout::Layout;
use crate::table::{Code, Grid, NEVER, Variant};
use crate::types::cpu::{BF16, F16};
use crate::types::{self, each_type};
use formats::{Format, Quantised};
use half::{bf16, f16};
use isa::Isa;
use ragtag_hal::{EntryAbi, HostCall};
use std::ops::Range;

/// A kernel that is generic over the instruction set.
pub(crate) trait HostKernel: 'static {
    /// The kernel that this type implements.
    const KERNEL: Kernel;

    /// Returns the kernel's binary interface.
    fn abi() -> &'static EntryAbi;
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
    out.push(variant::<S, rows::Gather>());
    out.push(variant::<S, rows::RmsNorm>());
    out.push(variant::<S, rows::RmsNormInt8>());
    out.push(variant::<S, rows::HeadNorm>());
    out.push(variant::<S, rows::Quantize>());
    out.push(variant::<S, rows::SiluMul>());
    out.push(variant::<S, rows::SiluMulInt8>());
    out.push(variant::<S, rows::Add>());
    out.push(variant::<S, halves::RmsNormF16>());
    out.push(variant::<S, halves::SiluMulF16>());
    out.push(variant::<S, halves::QuantizeF16>());
    out.push(variant::<S, halves::Product<F16>>());
    out.push(variant::<S, halves::Product<BF16>>());
    out.push(variant::<S, logits::Softmax>());
    out.push(variant::<S, logits::ArgMax>());
    out.push(variant::<S, logits::TopK>());
    out.push(variant::<S, rope_append::RopeAppend<kv::Single>>());
    out.push(variant::<S, rope_append::RopeAppend<kv::Half>>());
    out.push(variant::<S, attention::Attention<kv::Single>>());
    out.push(variant::<S, attention::Attention<kv::Half>>());
    out.push(variant::<S, split_attention::Partial<kv::Single>>());
    out.push(variant::<S, split_attention::Partial<kv::Half>>());
    out.push(variant::<S, split_attention::Merge>());
    out.push(variant::<S, split_attention::MergeInt8>());
    out.push(variant::<S, split_attention::MergeF16>());
    out.push(variant::<S, gemm::Gemm<f32>>());
    out.push(variant::<S, gemm::Gemm<f16>>());
    out.push(variant::<S, gemm::Gemm<bf16>>());
    out.push(variant::<S, attention_dense::AttentionDense<f32>>());
    out.push(variant::<S, attention_dense::AttentionDense<f16>>());
    out.push(variant::<S, attention_dense::AttentionDense<bf16>>());
    out.push(variant::<S, conv2d::Conv2d<f32>>());
    out.push(variant::<S, conv2d::Conv2d<f16>>());
    out.push(variant::<S, conv2d::Conv2d<bf16>>());
    out.push(variant::<S, elementwise::Copy>());
    out.push(variant::<S, elementwise::GatherRows>());
    out.push(variant::<S, elementwise::Unary>());
    out.push(variant::<S, elementwise::Binary>());
    out.push(variant::<S, lines::Reduce>());
    out.push(variant::<S, lines::SoftmaxAxis>());
    out.push(variant::<S, lines::LayerNorm>());
    out.push(variant::<S, elementwise::Rope>());
    out.push(variant::<S, file_blocks::DecodeBlocks>());
    out.push(variant::<S, file_blocks::EncodeBlocks>());
}

/// Adds the kernels that every tensor type has, instantiated for the reader `W`.
pub(crate) fn plain<S: Isa, W: Format>(out: &mut Vec<Variant>) {
    out.push(variant::<S, rows::Embed<W>>());
    out.push(variant::<S, matmul::Exact<W>>());
}

/// Adds all kernels of a tensor type with integer quants, instantiated for the reader `W`.
pub(crate) fn quantised<S: Isa, W: Quantised>(out: &mut Vec<Variant>) {
    plain::<S, W>(out);
    out.push(variant::<S, matmul::Fast<W>>());
    out.push(variant::<S, halves::Widen<W>>());
}

/// Returns the minimum number of rows for which programs prefer variants of `kernel`. On CPUs, programs never
/// dequantize weights to f16, because there are no matrix units. They never split attention either, because a
/// few groups keep all cores busy.
fn min_rows(kernel: Kernel) -> u32 {
    match kernel {
        Kernel::Widen(_)
        | Kernel::MatMul(_, Activations::F16)
        | Kernel::AttentionPartial(_)
        | Kernel::AttentionMerge(_) => NEVER,
        _ => 0,
    }
}

fn variant<S: Isa, K: HostKernel>() -> Variant {
    Variant {
        kernel: K::KERNEL,
        name: S::NAME,
        class: K::KERNEL.class(),
        requires: S::FEATURES,
        abi: K::abi(),
        grid: Grid::Fixed(K::grid),
        layout: K::KERNEL.layout(|_| Layout::Rows16),
        min_rows: min_rows(K::KERNEL),
        max_rows: u32::MAX,
        code: Code::Host(S::function::<K>()),
    }
}

/// Returns the kernel that multiplies `tensor_type` weights by `activations`.
const fn product(tensor_type: TensorType, activations: Activations) -> Kernel {
    Kernel::MatMul(tensor_type, activations)
}
