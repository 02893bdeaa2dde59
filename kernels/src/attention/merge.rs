//! Second launch of split attention: combines the partial results of [`partial`](super::partial) into f32,
//! int8 or f16 activations.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | [partials](super::partial) |
//! | 2 | out: f32 `[rows, heads · head dimension]`, [int8](crate::quantize) or [f16 activations](crate::half_rows), written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the heads,
//! the head dimension, and the number of splits.
//!
//! For each split, let m be its largest score, s its sum, and v its mean of the values. Let M be the maximum
//! of m over all splits. Then out = Σ w v / Σ w, with w = s · e^(m − M). Splits with s = 0 are ignored. If s
//! = 0 for all splits of a head, the output of the head is zero.

use super::partial::partials_bytes;
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, abi_for, array};
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::Layout;
use crate::params::ROWS;
use crate::quantize::{BLOCK, scales_alone};
use crate::rows::{self, RowKernel};
use crate::wgsl::programs::plain;
use crate::wgsl::{F32_ROWS, HALF_ROWS, INT8_ROWS, repeat};
use ragtag_hal::{Access, EntryAbi};

fn extents(activations: Activations, constants: &[u32], out: &mut [u64]) {
    let [rows, _, heads, head_dim, splits] = array(constants);
    let partials = partials_bytes(rows, heads, head_dim, splits);
    let width = heads.checked_mul(head_dim);
    let written = width.map_or(IMPOSSIBLE, |width| activations.rows_extent(rows, width));
    out.copy_from_slice(&[HEADER_BYTES, partials, written]);
}

/// Computes the output of one head in f64. A sink of −∞ stands for none.
pub(super) fn reference(means: &[f32], sums: &[[f32; 2]], head_dim: usize, sink: f64) -> Vec<f64> {
    let runs = || sums.iter().zip(means.chunks_exact(head_dim)).filter(|([_, sum], _)| *sum != 0.0);
    let largest = runs().fold(sink, |m, ([largest, _], _)| m.max(f64::from(*largest)));
    let (mut out, mut total) = (vec![0.0; head_dim], 0.0);
    if sink != f64::NEG_INFINITY {
        total += (sink - largest).exp();
    }
    for ([run_largest, sum], mean) in runs() {
        let weight = (f64::from(*run_largest) - largest).exp() * f64::from(*sum);
        total += weight;
        out.iter_mut().zip(mean).for_each(|(out, mean)| *out += weight * f64::from(*mean));
    }
    if total != 0.0 {
        out.iter_mut().for_each(|out| *out /= total);
    }
    out
}

/// Returns a grid of rows × parts of a row.
fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_mul(constants[3]).div_ceil(rows::ITEMS), 1]
}

/// Number of splits that the kernel combines at once: `BATCH` in the WGSL source.
const BATCH: u32 = 16;

/// Returns the WGSL source. Unrolls the loop over the splits of a batch.
fn unrolled() -> String {
    repeat(include_str!("merge.wgsl"), &[("$s", BATCH)])
}

pub(crate) struct AttentionMerge(pub Activations);

impl Spec for AttentionMerge {
    fn accuracy(&self) -> Accuracy {
        Accuracy::of_rows(self.0, 2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(
            Activations,
            self.0,
            "attention_merge",
            &[Access::Read, Access::Read, Access::Write],
            5,
            extents
        )
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = match self.0 {
            Activations::F32 => plain!("attention_merge", [F32_ROWS, &unrolled()]),
            Activations::Int8 => plain!("attention_merge", [INT8_ROWS, &unrolled()]),
            Activations::F16 => plain!("attention_merge", [HALF_ROWS, &unrolled()]),
        };
        Some(RowKernel { local_bytes: 8 << 10, ..RowKernel::new(grid, include_str!("merge.cl"), wgsl) })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (shape, [heads, head_dim, splits]) in ROW_SHAPES.into_iter().zip([
            [1, 64, 1],
            [8, 128, 33],
            [16, 20, 2],
            [4, 48, 64],
            [32, 2, 3],
            [5, 96, 7],
        ]) {
            out.push(case(random, self.0, shape, [heads, head_dim, splits]));
        }
        let expected = match self.0 {
            Activations::F32 => Some([f64::NAN, 2.0].map(|mean| [Some(mean); BLOCK]).concat()),
            Activations::Int8 => Some(scales_alone(&[Some(f64::NAN), None])),
            Activations::F16 => None,
        };
        out.extend(expected.map(|expected| not_finite(self.0, expected)));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 8);
        let (heads, splits) = (1 + random.below(9), 1 + random.below(64));
        let head_dim =
            if self.0 == Activations::F32 { 4 * (1 + random.below(40)) } else { 32 * (1 + random.below(4)) };
        case(random, self.0, shape, [heads, head_dim, splits])
    }
}

/// Builds a case in which the partial result of one split of the first head is NaN, so that the output of
/// this head is NaN. The second head has only one nonempty split, and its output is the mean of that split.
fn not_finite(activations: Activations, expected: Vec<Option<f64>>) -> Case {
    let runs = [[1.0, 2.0], [f32::NAN; 2], [0.0; 2], [3.0, 1.0]];
    let means = [0.5, f32::NAN, f32::NAN, 2.0].map(|mean| [mean; BLOCK]);
    let constants = [1, ROWS as usize, 2, BLOCK, 2];
    let case = Build::new(Kernel::AttentionMerge(activations), "not finite".into(), &constants);
    let case = case.words(&[1; 4]).floats(&[means.as_flattened(), runs.as_flattened()].concat());
    case.floats(&vec![7.0; expected.len()]).expect(2, Content::SomeSame(expected)).done()
}

fn case(
    random: &mut Random,
    activations: Activations,
    shape: RowShape,
    [heads, head_dim, splits]: [usize; 3],
) -> Case {
    let width = heads * head_dim;
    let (means, sums) = partials(random, shape.capacity, [heads, head_dim, splits]);
    let heads_of = means.chunks_exact(splits * head_dim).zip(sums.chunks_exact(splits));
    let expected: Vec<f64> =
        heads_of.flat_map(|(means, sums)| reference(means, sums, head_dim, f64::NEG_INFINITY)).collect();
    let constants = [shape.capacity, shape.count_word as usize, heads, head_dim, splits];
    let label = format!("{}, {heads} heads, {splits} splits", shape.label(width));
    let case = Build::new(Kernel::AttentionMerge(activations), label, &constants);
    let case = case.words(&shape.header()).floats(&[&means[..], sums.as_flattened()].concat());
    case.expect_rows(2, activations, &expected, shape, width)
}

/// Returns random means and sums of `capacity` rows. The first head of every third row has no splits. Other heads have
/// some empty splits, whose contents must not be read.
pub(super) fn partials(
    random: &mut Random,
    capacity: usize,
    [heads, head_dim, splits]: [usize; 3],
) -> (Vec<f32>, Vec<[f32; 2]>) {
    let runs = capacity * heads * splits;
    let mut means = random.floats(runs * head_dim, 2.0);
    let mut sums: Vec<[f32; 2]> = (0..runs).map(|_| [random.float(9.0), 8.5 + random.float(7.5)]).collect();
    for (i, sum) in sums.iter_mut().enumerate() {
        let first_head = (i / splits).is_multiple_of(3 * heads);
        if (first_head && capacity > 1) || (splits > 1 && random.below(4) == 0) {
            *sum = [f32::NAN, 0.0];
            means[i * head_dim..][..head_dim].fill(f32::NAN);
        }
    }
    (means, sums)
}
