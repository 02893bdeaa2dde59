//! Kernels for f16 activations. They convert values to f16 activations, multiply weights by them, and
//! dequantize weights to f16 for these products.
//!
//! On CPUs, f16 activations are no faster than the alternatives. These kernels run only if the user requests
//! f16, or if a test compares them with another device.

use super::formats::{Format, Of};
use super::isa::Isa;
use super::launch::count;
use super::rows::{block, gate_and_up, gated, norm_scale};
use super::{HostKernel, product};
use crate::blocks::TensorType;
use crate::half_rows::row_bytes;
use crate::kernel::{Activations, Kernel};
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, group_bytes};
use crate::quantize::BLOCK;
use crate::table::NEVER;
use crate::{add, matmul, widen};
use ragtag_hal::HostCall;
use std::ops::Range;

/// Rounds each lane to f16. Values beyond the range of f16 saturate, and NaN is preserved.
#[inline(always)]
pub(super) fn rounded<S: Isa>(s: S, v: S::F) -> [u16; 16] {
    let largest = half::f16::MAX.to_f32();
    s.to_f16(s.max(s.splat(-largest), s.min(s.splat(largest), v)))
}

/// Writes a row of f16 activations, 32 columns at a time, and then its padding.
///
/// # Safety
/// The requirements of [`HostCall::write`] apply: the caller must own the row.
#[inline(always)]
pub(super) unsafe fn write_row<S: Isa>(
    s: S,
    call: &HostCall<'_>,
    binding: usize,
    row: usize,
    width: usize,
    values: impl Fn(usize) -> (S::F, S::F),
) {
    let pitch = row_bytes(width) / 2;
    // SAFETY: guaranteed by the caller.
    let out = unsafe { call.write::<u16>(binding, row * pitch..(row + 1) * pitch) };
    let (columns, padding) = out.split_at_mut(width);
    for (b, out) in columns.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let (first, last) = values(b);
        out[..16].copy_from_slice(&rounded(s, first));
        out[16..].copy_from_slice(&rounded(s, last));
    }
    padding.fill(0);
}

/// RMS norm with f16 output.
pub(crate) struct RmsNormF16;

impl HostKernel for RmsNormF16 {
    const KERNEL: Kernel = Kernel::RmsNorm(Activations::F16);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, _] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x, weight) = unsafe { (call.read::<u32>(0), call.read::<f32>(1), call.read::<f32>(2)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            let scale = s.splat(norm_scale(s, x, call.float(3)));
            let values = |b| {
                let ((x0, x1), (w0, w1)) = (block(s, x, b), block(s, weight, b));
                (s.mul(s.mul(x0, scale), w0), s.mul(s.mul(x1, scale), w1))
            };
            // SAFETY: each group writes its own row.
            unsafe { write_row(s, call, 3, row, width, values) };
        }
    }
}

/// f(gate) · up with f16 output.
pub(crate) struct SiluMulF16;

impl HostKernel for SiluMulF16 {
    const KERNEL: Kernel = Kernel::SiluMul(Activations::F16);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, f] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, gate_up) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let (gate, up) = gate_and_up(gate_up, row, width);
            let values = |b| {
                let ((g0, g1), (u0, u1)) = (block(s, gate, b), block(s, up, b));
                (gated(s, f, g0, u0), gated(s, f, g1, u1))
            };
            // SAFETY: each group writes its own row.
            unsafe { write_row(s, call, 2, row, width, values) };
        }
    }
}

/// Converts f32 activations to f16.
pub(crate) struct QuantizeF16;

impl HostKernel for QuantizeF16 {
    const KERNEL: Kernel = Kernel::Quantize(Activations::F16);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            // SAFETY: each group writes its own row.
            unsafe { write_row(s, call, 2, row, width, |b| block(s, x, b)) };
        }
    }
}

/// Products of f16 activations with row-major weights that have two bytes per value.
pub(crate) struct Product<W>(Of<W>);

impl<W: Format> HostKernel for Product<W> {
    const KERNEL: Kernel = product(W::TYPE, Activations::F16);
    const MIN_ROWS: u32 = NEVER;

    fn grid(constants: &[u32]) -> [u32; 3] {
        matmul::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, n, k, accumulate, stride] = call.constants else { return };
        let (n, stride, pitch) = (n as usize, stride as usize, row_bytes(k as usize));
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, weights, x) = unsafe { (call.read::<u32>(0), call.read::<u8>(1), call.read::<u8>(2)) };
        let x = &x[..count(params, word, rows) * pitch];
        for task in groups.start as usize..groups.end as usize {
            let first = task * matmul::TASK_ROWS as usize;
            let columns = first..n.min(first + matmul::TASK_ROWS as usize);
            for (row, x) in x.chunks_exact(pitch).enumerate() {
                let at = row * stride;
                // SAFETY: each group writes its own columns.
                let y = unsafe { call.write::<f32>(3, at + columns.start..at + columns.end) };
                for (column, y) in columns.clone().zip(y) {
                    let sum = dot::<S, W>(s, &weights[column * pitch..][..pitch], x);
                    *y = if accumulate != 0 { *y + sum } else { sum };
                }
            }
        }
    }
}

/// Returns the dot product of two rows. It includes the padding, which is zero and has no effect.
#[inline(always)]
fn dot<S: Isa, W: Format>(s: S, weights: &[u8], x: &[u8]) -> f32 {
    let mut sum = s.zero();
    for (w, x) in weights.as_chunks::<32>().0.iter().zip(x.as_chunks::<32>().0) {
        let w = if W::TYPE == TensorType::BF16 { s.load_bf16(w) } else { s.load_f16(w) };
        sum = s.fma(w, s.load_f16(x), sum);
    }
    s.sum(sum)
}

/// Dequantizes weights to rows of f16.
pub(crate) struct Widen<W>(Of<W>);

impl<W: Format> HostKernel for Widen<W> {
    const KERNEL: Kernel = Kernel::Widen(W::TYPE);
    const MIN_ROWS: u32 = NEVER;

    fn grid(constants: &[u32]) -> [u32; 3] {
        [widen::grid(constants)[0], 1, 1]
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[_, k] = call.constants else { return };
        let (k, pitch) = (k as usize, row_bytes(k as usize) / 2);
        let bytes = group_bytes(W::TYPE, k);
        // SAFETY: no thread writes the weights; all bit patterns are valid for this type.
        let weights = unsafe { call.read::<u8>(0) };
        for group in groups.start as usize..groups.end as usize {
            let opened = W::open(&weights[group * bytes..][..bytes], k);
            let first = group * GROUP_ROWS;
            // SAFETY: each group writes its own rows.
            let out = unsafe { call.write::<u16>(1, first * pitch..(first + GROUP_ROWS) * pitch) };
            for b in 0..k / COLUMN_BLOCK {
                let block = W::block(s, opened, b);
                for quad in 0..COLUMN_BLOCK / 4 {
                    for (i, column) in W::quad(s, &block, quad).into_iter().enumerate() {
                        let at = b * COLUMN_BLOCK + quad * 4 + i;
                        for (row, value) in rounded(s, column).into_iter().enumerate() {
                            out[row * pitch + at] = value;
                        }
                    }
                }
            }
            out.chunks_exact_mut(pitch).for_each(|row| row[k..].fill(0));
        }
    }
}
