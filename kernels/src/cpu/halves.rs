//! Products of f16 activations, and the conversion of weights to f16 for them.
//!
//! On CPUs, f16 activations are no faster than the alternatives. These kernels run only if the user requests
//! f16, or if a test compares them with another device.

use super::formats::{Format, Of};
use super::isa::Isa;
use super::launch::count;
use super::packed::rounded;
use super::{HostKernel, product};
use crate::abi::array;
use crate::blocks::TensorType;
use crate::half_rows::row_bytes;
use crate::kernel::{Activations, Kernel};
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, group_bytes};
use crate::variant::NEVER;
use crate::{matmul, widen};
use ragtag_hal::HostCall;
use std::ops::Range;

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
        let [rows, word, n, k, accumulate, stride] = array(call.constants);
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
        let [_, k] = array(call.constants);
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
