//! Reduce: one value for each line of values along an axis.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: f32 `[outer, axis, inner]` |
//! | 1 | out: f32 `[outer, inner]`, written |
//!
//! Constants: [reduction](Reduction), outer, axis, inner. An axis of zero values leaves `out` as it is.
//!
//! The largest and the smallest are NaN where any value is. Sums are taken in many parts, so that rounding hardly grows
//! with the axis.
//!
//! Groups take some neighbouring columns each.

use crate::abi::{IMPOSSIBLE, words};
use crate::cases::{Build, Case, Content, Random};
use crate::elements::ITEMS;
use crate::kernel::Kernel;
use ragtag_hal::{Access, EntryAbi};

/// What becomes of a line of values. Its discriminant is the kernel's constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Their sum over their number.
    Mean,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Mean];

    /// The reduction in f64.
    pub fn of(self, values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        let extreme = |a: f64, b: f64, larger: bool| match () {
            () if a.is_nan() || b.is_nan() => f64::NAN,
            () if larger => a.max(b),
            () => a.min(b),
        };
        match self {
            Reduction::Sum => values.sum(),
            Reduction::Max => values.fold(f64::NEG_INFINITY, |a, b| extreme(a, b, true)),
            Reduction::Min => values.fold(f64::INFINITY, |a, b| extreme(a, b, false)),
            Reduction::Mean => values.sum::<f64>() / count,
        }
    }
}

/// The binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "reduce",
    bindings: &[Access::Read, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [reduction, outer, axis, inner] = *constants else { return };
        let exists = (reduction as usize) < Reduction::ALL.len();
        let sizes = [words(&[outer, axis, inner]), words(&[outer, inner])];
        extents.copy_from_slice(&if exists { sizes } else { [IMPOSSIBLE; 2] });
    },
};

/// Columns of `[axis, inner]` that a group takes: a power of two, so that as many items as possible share each.
pub(crate) fn columns(inner: u32) -> u32 {
    inner.clamp(1, ITEMS).next_power_of_two()
}

/// Outer × parts of inner.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [_, outer, axis, inner] = *constants else { return [0; 3] };
    if axis == 0 { [0; 3] } else { [outer, inner.div_ceil(columns(inner)), 1] }
}

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    for (i, shape) in [
        [1, 1, 1],
        [1, 1009, 1],
        [7, 257, 1],
        [3, 31, 5],
        [2, 70, 67],
        [1, 3, 1031],
        [5, 1, 300],
        [1, 2000, 129],
    ]
    .into_iter()
    .enumerate()
    {
        out.push(case(&mut random, Reduction::ALL[i % 4], shape));
        out.push(case(&mut random, Reduction::ALL[(i + 1) % 4], shape));
    }
    // More groups than one dimension of a dispatch has on some devices.
    out.push(case(&mut random, Reduction::Sum, [65_537, 2, 1]));
    out.extend(Reduction::ALL.map(|reduction| edges(&mut random, reduction)));
    out
}

pub(crate) fn random_case(random: &mut Random) -> Case {
    let reduction = Reduction::ALL[random.below(4)];
    let inner = [2, 50, 600][random.below(3)];
    let shape = [1 + random.below(20), 1 + random.below(400), 1 + random.below(inner)];
    case(random, reduction, shape)
}

/// The lines along the axis of `[outer, axis, inner]`, in the order of `[outer, inner]`.
pub(crate) fn lines(
    x: &[f32],
    [_, axis, inner]: [usize; 3],
) -> impl Iterator<Item = impl ExactSizeIterator<Item = f64> + Clone> {
    x.chunks(axis * inner).flat_map(move |outer| {
        (0..inner).map(move |column| outer[column..].iter().step_by(inner).map(|x| f64::from(*x)))
    })
}

fn case(random: &mut Random, reduction: Reduction, shape: [usize; 3]) -> Case {
    let mut x = random.floats(shape.iter().product(), 1.0);
    x.iter_mut().for_each(|x| *x += 0.5);
    let wanted: Vec<_> = lines(&x, shape).map(|line| Some(reduction.of(line))).collect();
    build(reduction, shape, format!("{reduction:?} of {shape:?}"), &x)
        .poison(wanted.len() * 4)
        .expect_f32(1, wanted)
}

/// Lines with NaN and infinities. Their length is a power of two: not every device rounds quotients as f32 is rounded.
fn edges(random: &mut Random, reduction: Reduction) -> Case {
    let shape = [2, 32, 4];
    let mut x = vec![-1.0; shape.iter().product()];
    for (column, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        x[random.below(32) * 4 + column] = value;
    }
    let wanted = lines(&x, shape).map(|line| Some(reduction.of(line) as f32)).collect();
    let case = build(reduction, shape, format!("{reduction:?} of what is special"), &x);
    case.floats(&[7.0; 8]).expect(1, Content::Same(wanted)).done()
}

fn build(reduction: Reduction, [outer, axis, inner]: [usize; 3], label: String, x: &[f32]) -> Build {
    Build::new(Kernel::Reduce, label, &[reduction as usize, outer, axis, inner]).floats(x)
}
