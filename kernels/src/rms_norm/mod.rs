//! RMS norm: divides each row by its root mean square and multiplies each column by a weight. The output is
//! f32, int8 or f16.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | weight: f32 `[width]` |
//! | 3 | out: f32 `[rows, width]`, [int8](crate::quantize) or [f16 activations](crate::half_rows), written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width,
//! and ε (the bits of an f32), which is added to the mean square. A launch has one group per row.
//!
//! Squares and their sum are computed in f32, so the root mean square of a row must be at most 1.8 · 10¹⁹ /
//! √width. If a row of finite values exceeds this limit, its output is zero.

use crate::abi::{HEADER_BYTES, abi_for, array, words};
use crate::add::grid;
use crate::cases::{Build, Case, Random, RowShape, wide_rows};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::wgsl::programs::reducing;
use crate::wgsl::{HALF_ROWS, INT8_ROWS};
use ragtag_hal::{Access, EntryAbi};

fn extents(activations: Activations, constants: &[u32], out: &mut [u64]) {
    let [rows, _, width, _] = array(constants);
    let written = activations.rows_extent(rows, width);
    out.copy_from_slice(&[HEADER_BYTES, words(&[rows, width]), words(&[width]), written]);
}

/// Computes one row in f64.
pub(crate) fn reference(row: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(epsilon)).sqrt();
    row.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

/// Scales down every second row of `x`, so that ε exceeds the row's mean square.
pub(crate) fn small_rows(x: &mut [f32], width: usize) {
    x.chunks_mut(width).skip(1).step_by(2).for_each(|row| row.iter_mut().for_each(|x| *x *= 1e-3));
}

const PACKED: &str = include_str!("rms_norm_packed.wgsl");

pub(crate) struct RmsNorm(pub Activations);

impl Spec for RmsNorm {
    fn accuracy(&self) -> Accuracy {
        Accuracy::of_rows(self.0, 1e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(
            Activations,
            self.0,
            "rms_norm",
            &[Access::Read, Access::Read, Access::Read, Access::Write],
            4,
            extents
        )
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = match self.0 {
            Activations::F32 => reducing!("rms_norm", [include_str!("rms_norm.wgsl")]),
            Activations::Int8 => reducing!("rms_norm", [INT8_ROWS, PACKED]),
            Activations::F16 => reducing!("rms_norm", [HALF_ROWS, PACKED]),
        };
        Some(RowKernel::new(grid, include_str!("rms_norm.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        wide_rows(self.0).map(|(shape, width)| case(random, self.0, shape, width)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let blocks = 1 + random.below(30);
        let width = if self.0 == Activations::F32 { 1 + random.below(900) } else { blocks * 32 };
        let shape = RowShape::random(random, 40);
        case(random, self.0, shape, width)
    }
}

fn case(random: &mut Random, activations: Activations, shape: RowShape, width: usize) -> Case {
    let epsilon = 1e-5_f32;
    let (mut x, weight) = (random.floats(shape.capacity * width, 3.0), random.floats(width, 1.5));
    small_rows(&mut x, width);
    let expected: Vec<f64> = x.chunks_exact(width).flat_map(|row| reference(row, &weight, epsilon)).collect();
    let constants = [shape.capacity, shape.count_word as usize, width, epsilon.to_bits() as usize];
    let case = Build::new(Kernel::RmsNorm(activations), shape.label(width), &constants);
    let case = case.words(&shape.header()).floats(&x).floats(&weight);
    case.expect_rows(3, activations, &expected, shape, width)
}
