//! Gemm: C = α · op(A) · op(B) + β · C for batches of row-major matrices.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | A: values of the kernel's type, `[m, k]`, or `[k, m]` if transposed |
//! | 1 | B: values of the same type, `[k, n]`, or `[n, k]` if transposed |
//! | 2 | C: f32 `[m, n]`, read and written |
//!
//! The constants are:
//! - m, n, k, transpose A (0 or 1), transpose B (0 or 1);
//! - lda, ldb, ldc: the row strides of A, B and C, in values;
//! - batch, and the strides of A, B and C between the matrices of the batch, in values. With a stride of
//!   zero, all products of the batch share one matrix;
//! - α, β (the bits of an f32).
//!
//! Rows of C must not overlap. The kernel does not write the gaps between them. Kernels read 16-bit types in
//! 32-bit words, so the size of these bindings is a multiple of four bytes.
//!
//! As in BLAS, the kernel does not read C if β is zero, and does not read A and B if α or k is zero. Sums are
//! accumulated in f32. Each dimension and the number of work groups are at most 2³¹ − 1. A work group
//! computes [`TILE`] × [`TILE`] values of C.
//!
//! The operation is that of GEMM in the Basic Linear Algebra Subprograms (Dongarra et al., 1990), but for
//! row-major instead of column-major matrices.

use crate::abi::{IMPOSSIBLE, abi_for, array, reach, reach_apart, values};
use crate::cases::{Build, Case, MANY, Random, Stored, row_starts};
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Number of rows and of columns of C that one work group computes.
pub const TILE: u32 = 64;

/// Returns the binary interface for values of type `element`.
pub fn abi(element: ElementType) -> &'static EntryAbi {
    abi_for!(ElementType, element, "gemm", &[Access::Read, Access::Read, Access::ReadWrite], 14, extents)
}

fn extents(element: ElementType, constants: &[u32], out: &mut [u64]) {
    let [m, n, k, transpose_a, transpose_b, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, _, _] =
        array(constants);
    if m == 0 || n == 0 || batch == 0 {
        return out.fill(0);
    }
    if [m, n, k].iter().any(|size| *size > i32::MAX as u32) || groups(m, n, batch).is_none() {
        return out.fill(IMPOSSIBLE);
    }
    let (a_rows, a_width) = if transpose_a == 0 { (m, k) } else { (k, m) };
    let (b_rows, b_width) = if transpose_b == 0 { (k, n) } else { (n, k) };
    out.copy_from_slice(&[
        values(element, reach(a_width, &[(a_rows, lda), (batch, stride_a)])),
        values(element, reach(b_width, &[(b_rows, ldb), (batch, stride_b)])),
        values(ElementType::F32, reach_apart(n, [(m, ldc), (batch, stride_c)])),
    ]);
}

/// Returns the number of tiles of C, or `None` if it exceeds the maximum number of work groups in a launch.
fn groups(m: u32, n: u32, batch: u32) -> Option<u32> {
    let tiles = m.div_ceil(TILE).checked_mul(n.div_ceil(TILE))?;
    tiles.checked_mul(batch).filter(|groups| *groups <= i32::MAX as u32)
}

/// Returns a grid with one work group per matrix, row tile and column tile. All work groups are in the first
/// dimension, which has the largest limit on every device.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [groups(constants[0], constants[1], constants[8]).unwrap_or(u32::MAX), 1, 1]
}

/// Parameters of a case. The gaps are the numbers of unused values by which the strides exceed those of dense
/// matrices.
#[derive(Clone, Copy)]
struct Shape {
    sizes: [usize; 3],
    transposed: [bool; 2],
    batch: usize,
    row_gaps: [usize; 3],
    matrix_gaps: [usize; 3],
    /// Whether all products of the batch use the same A, and whether they use the same B.
    shared: [bool; 2],
    factors: [f32; 2],
}

const PLAIN: Shape = Shape {
    sizes: [1; 3],
    transposed: [false; 2],
    batch: 1,
    row_gaps: [0; 3],
    matrix_gaps: [0; 3],
    shared: [false; 2],
    factors: [1.0, 0.0],
};

pub(crate) struct Gemm(pub ElementType);

impl Spec for Gemm {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi(self.0)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let gaps = Shape { row_gaps: [3, 1, 5], matrix_gaps: [7, 0, 2], factors: [0.5, -2.0], ..PLAIN };
        let shapes = [
            PLAIN,
            Shape { sizes: [1, 67, 33], ..PLAIN },
            Shape { sizes: [67, 1, 5], factors: [-1.5, 1.0], ..PLAIN },
            Shape { sizes: [64, 128, 32], ..PLAIN },
            Shape { sizes: [65, 63, 17], batch: 2, ..gaps },
            Shape { sizes: [29, 71, 40], transposed: [true, false], batch: 3, shared: [true, false], ..gaps },
            Shape { sizes: [71, 29, 31], transposed: [false, true], batch: 2, shared: [false, true], ..gaps },
            Shape { sizes: [66, 68, 47], transposed: [true, true], row_gaps: [2, 4, 0], ..PLAIN },
            Shape { sizes: [3, 5, 0], factors: [1.0, 0.5], ..PLAIN },
            Shape { sizes: [3, 5, 7], factors: [0.0, 2.0], ..PLAIN },
            Shape { sizes: [0, 5, 7], factors: [1.0, 2.0], ..PLAIN },
        ];
        shapes.into_iter().map(|shape| case(self.0, random, shape)).collect()
    }

    /// Returns a random product. In a few cases, the launch has more work groups than some devices allow in
    /// one dimension.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let mut few = |bound: usize| random.below(bound);
        let many = few(64) == 0;
        let shape = Shape {
            sizes: [few(140), few(140), few(100)],
            transposed: [few(2) == 1, few(2) == 1],
            batch: 1 + few(3),
            row_gaps: [few(4), few(4), few(4)],
            matrix_gaps: [few(9), few(9), few(9)],
            shared: [few(4) == 1, few(4) == 1],
            factors: [few(5) as f32 / 2.0 - 1.0, few(5) as f32 / 2.0 - 1.0],
        };
        let many_small = Shape { sizes: [1, 2, 3], batch: MANY, ..shape };
        case(self.0, random, if many { many_small } else { shape })
    }
}

fn case(element: ElementType, random: &mut Random, shape: Shape) -> Case {
    let Shape { sizes: [m, n, k], transposed, batch, factors: [alpha, beta], .. } = shape;
    let (a_rows, a_width) = if transposed[0] { (k, m) } else { (m, k) };
    let (b_rows, b_width) = if transposed[1] { (n, k) } else { (k, n) };
    let [lda, ldb, ldc] = [0, 1, 2].map(|i| [a_width, b_width, n][i] + shape.row_gaps[i]);
    let stride = |i: usize, whole: usize| whole + shape.matrix_gaps[i];
    let stride_a = if shape.shared[0] { 0 } else { stride(0, a_rows * lda) };
    let stride_b = if shape.shared[1] { 0 } else { stride(1, b_rows * ldb) };
    let stride_c = stride(2, m * ldc);

    // Values that must not be read are NaN: gaps, A and B if α is zero, and C if β is zero.
    let mut inputs = |dimensions: [(usize, usize); 2], width, is_read| {
        random.rows(width, &dimensions, if is_read { 1.0 } else { f32::NAN })
    };
    let a = Stored::new(element, &inputs([(batch, stride_a), (a_rows, lda)], a_width, alpha != 0.0));
    let b = Stored::new(element, &inputs([(batch, stride_b), (b_rows, ldb)], b_width, alpha != 0.0));
    let c = inputs([(batch, stride_c), (m, ldc)], n, beta != 0.0);

    let mut expected = vec![None; c.len()];
    for (i, start) in row_starts(&[(batch, stride_c), (m, ldc)]).into_iter().enumerate() {
        let (matrix, row) = (i / m, i % m);
        let a_at = |d| matrix * stride_a + if transposed[0] { d * lda + row } else { row * lda + d };
        for column in 0..n {
            let b_at =
                |d| matrix * stride_b + if transposed[1] { column * ldb + d } else { d * ldb + column };
            let depth = if alpha == 0.0 { 0 } else { k };
            let sum: f64 = (0..depth).map(|d| a.values[a_at(d)] * b.values[b_at(d)]).sum();
            let before = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(c[start + column]) };
            expected[start + column] = Some(f64::from(alpha) * sum + before);
        }
    }
    let flags = transposed.map(usize::from);
    let bits = [alpha, beta].map(|factor| factor.to_bits() as usize);
    let constants =
        [&[m, n, k][..], &flags, &[lda, ldb, ldc, batch, stride_a, stride_b, stride_c], &bits].concat();
    let label = format!(
        "{batch} of {m} × {n} × {k}, transposed {transposed:?}, rows {lda}, {ldb}, {ldc} apart, {alpha} and {beta}"
    );
    let build = Build::new(Kernel::Gemm(element), label, &constants).bytes(a.bytes).bytes(b.bytes).floats(&c);
    build.expect_f32(2, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents_of(changes: &[(usize, u32)]) -> [u64; 3] {
        let mut constants = [3, 5, 7, 0, 0, 7, 5, 5, 2, 21, 35, 15, 0, 0];
        changes.iter().for_each(|(at, value)| constants[*at] = *value);
        let mut out = [0; 3];
        extents(ElementType::F16, &constants, &mut out);
        out
    }

    #[test]
    fn extents_reach_to_the_last_value() {
        assert_eq!(extents_of(&[]), [84, 140, 120]);
        // First case: rows of three values. The last row ends in the middle of a word, and a batch shares B.
        assert_eq!(extents_of(&[(3, 1), (5, 4), (10, 0)]), [96, 72, 120]);
        assert_eq!(extents_of(&[(2, 0)]), [0, 0, 120]);
        assert_eq!(extents_of(&[(0, 0)]), [0; 3]);
        assert_eq!(extents_of(&[(8, 0)]), [0; 3]);
    }

    #[test]
    fn rejects_overlapping_results_and_too_many_groups() {
        assert_eq!(extents_of(&[(7, 4)])[2], IMPOSSIBLE);
        assert_eq!(extents_of(&[(11, 14)])[2], IMPOSSIBLE);
        // Interleaved rows of all matrices do not overlap.
        assert_eq!(extents_of(&[(7, 10), (11, 5)])[2], 120);
        assert_eq!(extents_of(&[(8, 1 << 31)])[2], IMPOSSIBLE);
        assert_eq!(extents_of(&[(2, 1 << 31)]), [IMPOSSIBLE; 3]);
    }
}
