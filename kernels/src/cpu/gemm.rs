//! General matrix products, computed tile by tile.

use super::HostKernel;
use super::elements::Element;
use super::isa::Isa;
use crate::abi::array;
use crate::gemm::{self, TILE as TILE_WORDS};
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// Number of rows and of columns of a tile.
pub(super) const TILE: usize = TILE_WORDS as usize;

/// Number of rows of the second matrix that the kernel gathers into a buffer at once.
const DEPTH: usize = 64;

/// Sums of a tile, `[row][column]`.
pub(super) type Sums = [[f32; TILE]; TILE];

/// C = α · op(A) · op(B) + β · C.
pub(crate) struct Gemm<E>(PhantomData<E>);

impl<E: Element> HostKernel for Gemm<E> {
    const KERNEL: Kernel = Kernel::Gemm(E::TYPE);

    fn grid(constants: &[u32]) -> [u32; 3] {
        gemm::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [m, n, k, transpose_a, transpose_b, lda, ldb, ldc, _, stride_a, stride_b, stride_c, _, _] =
            array(call.constants).map(|c| c as usize);
        let (alpha, beta) = (call.float(12), call.float(13));
        // SAFETY: no thread writes these bindings; all bit patterns are valid for this type.
        let (a, b) = unsafe { (call.read::<E>(0), call.read::<E>(1)) };
        let (down, across) = (m.div_ceil(TILE), n.div_ceil(TILE));
        let depth = if alpha == 0.0 { 0 } else { k };
        for group in groups.start as usize..groups.end as usize {
            let (matrix, tile) = (group / (down * across), group % (down * across));
            let (row, column) = (tile / across * TILE, tile % across * TILE);
            let (rows, columns) = (TILE.min(m - row), TILE.min(n - column));
            let a_at = |i: usize, d: usize| {
                let at = if transpose_a == 0 { (row + i) * lda + d } else { d * lda + row + i };
                a[matrix * stride_a + at].value()
            };
            let b_at = |d: usize, j: usize| {
                let at = if transpose_b == 0 { d * ldb + column + j } else { (column + j) * ldb + d };
                b[matrix * stride_b + at].value()
            };
            let sums = product(s, [rows, columns, depth], a_at, b_at);
            for (i, sums) in sums.iter().enumerate().take(rows) {
                let start = matrix * stride_c + (row + i) * ldc + column;
                // SAFETY: each group writes its own tile, and rows of C do not overlap.
                let out = unsafe { call.write::<f32>(2, start..start + columns) };
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = if beta == 0.0 { alpha * sum } else { alpha * sum + beta * *out };
                }
            }
        }
    }
}

/// Computes at most one tile of a matrix product. `a(row, depth)` and `b(depth, column)` return the values of
/// the two factors.
#[inline(always)]
pub(super) fn product<S: Isa>(
    s: S,
    [rows, columns, depth]: [usize; 3],
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
) -> Sums {
    let mut sums = [[0.0; TILE]; TILE];
    let mut panel = [[0.0; TILE]; DEPTH];
    for first in (0..depth).step_by(DEPTH) {
        let deep = DEPTH.min(depth - first);
        for (d, panel) in panel.iter_mut().enumerate().take(deep) {
            panel[..columns].iter_mut().enumerate().for_each(|(j, to)| *to = b(first + d, j));
        }
        for (i, sums) in sums.iter_mut().enumerate().take(rows) {
            let sums = sums.as_chunks_mut::<16>().0;
            let mut acc = [s.zero(); TILE / 16];
            for v in 0..TILE / 16 {
                acc[v] = s.load(&sums[v]);
            }
            for (d, panel) in panel.iter().enumerate().take(deep) {
                let factor = s.splat(a(i, first + d));
                let panel = panel.as_chunks::<16>().0;
                for v in 0..TILE / 16 {
                    acc[v] = s.fma(factor, s.load(&panel[v]), acc[v]);
                }
            }
            for v in 0..TILE / 16 {
                s.store(acc[v], &mut sums[v]);
            }
        }
    }
    sums
}
