//! Reduce: reduces each line of values along an axis, or each part of a line, to one value.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: `[outer, axis, inner]`, values of any element type |
//! | 1 | out: f32 `[outer, parts, inner]`, written |
//!
//! The constants are:
//! - the [reduction](Reduction) and the [number](crate::elements::number) of the element type;
//! - outer, axis, inner;
//! - the number of values per part. The last part of a line holds the remainder. A line has at most 65,535
//!   parts;
//! - the count by which a mean divides the sum.
//!
//! If the axis has no values, the kernel does not write `out`.
//!
//! The reduction of a few long lines takes two launches, because one group per line would not keep a device
//! busy. The first launch reduces the parts of each line. [`part`] returns the size of a part. The second
//! launch reduces the results of the parts. For a mean, the first launch computes the sum of each part, and
//! the second divides the total by the size of the axis.
//!
//! Max and min are NaN if any value is NaN. Kernels split a sum into many partial sums, so that the rounding
//! error hardly grows with the size of the axis.
//!
//! A work group computes adjacent columns of a part.

use crate::abi::{IMPOSSIBLE, array, product, words};
use crate::cases::{Build, Case, Content, Random, Stored};
use crate::elements::{self, ITEMS, Operator};
use crate::kernel::{ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Reduction of a line of values. The kernel receives its discriminant as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reduction {
    /// Sum of the values.
    Sum,
    /// Largest value.
    Max,
    /// Smallest value.
    Min,
    /// Sum divided by the count in the constants.
    Mean,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Mean];

    /// Reduces `values` in f64. For a mean, divides the sum by the number of values.
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

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "reduce",
    bindings: &[Access::Read, Access::Write],
    constants: 7,
    extents: |constants, extents| {
        let [reduction, kind, outer, axis, inner, part, count] = array(constants);
        let exists = (reduction as usize) < Reduction::ALL.len() && part > 0 && count > 0;
        let parts = axis.div_ceil(part.max(1)).max(1);
        let exists = exists && parts <= MAX_PARTS;
        let sizes = [elements::bytes(kind, product(&[outer, axis, inner])), words(&[outer, parts, inner])];
        extents.copy_from_slice(&if exists { sizes } else { [IMPOSSIBLE; 2] });
    },
};

/// Returns the number of columns of `[axis, inner]` per work group. It is the smallest power of two that
/// covers `inner`, but at most the number of work items. As many work items as possible then share each
/// column.
pub(crate) fn columns(inner: u32) -> u32 {
    inner.clamp(1, ITEMS).next_power_of_two()
}

/// Maximum number of parts of a line. Some devices do not allow more work groups in the last dimension of a
/// launch.
const MAX_PARTS: u32 = 65_535;

/// Number of work groups that keep a device busy.
const ENOUGH: u32 = 512;

/// Minimum number of values that each work item processes within its part of a column.
const MIN_VALUES: u32 = 32;

/// Returns the best part size, which is at most `axis`. The parts yield enough work groups to keep a device
/// busy, unless parts of this size would be too short for their work items.
pub fn part([outer, axis, inner]: [u32; 3]) -> u32 {
    let groups = outer.saturating_mul(inner.div_ceil(columns(inner))).max(1);
    let least = ITEMS / columns(inner) * MIN_VALUES;
    let parts = ENOUGH.div_ceil(groups).min(axis / least).max(1);
    axis.div_ceil(parts)
}

/// Returns the number of strips over all outer indices. A strip is the set of adjacent columns that one work
/// group computes. All strips are in the first dimension of a launch, which has the largest limit on every
/// device.
pub(crate) fn strips(outer: u32, inner: u32) -> u32 {
    outer.saturating_mul(inner.div_ceil(columns(inner)))
}

/// Returns a grid with the strips in the first dimension, and the parts of the axis in the last.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [_, _, outer, axis, inner, part, _] = array(constants);
    [strips(outer, inner), 1, axis.div_ceil(part.max(1))]
}

pub(crate) struct Reduce;

impl Spec for Reduce {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::in_columns(include_str!("reduce.wgsl"));
        Some(Operator { grid, c: include_str!("reduce.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
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
            let [_, axis, _] = shape;
            out.push(case(random, Reduction::ALL[i % 4], ElementType::F32, shape, axis));
            out.push(case(
                random,
                Reduction::ALL[(i + 1) % 4],
                ElementType::ALL[i % 3],
                shape,
                axis.div_ceil(3),
            ));
        }
        // More groups than some devices allow in one dimension of a dispatch.
        out.push(case(random, Reduction::Sum, ElementType::F32, [65_537, 2, 1], 2));
        out.push(case(random, Reduction::Max, ElementType::F32, [1, 5003, 1], 5));
        out.extend(Reduction::ALL.map(|reduction| edges(random, reduction)));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let reduction = Reduction::ALL[random.below(4)];
        let inner = [2, 50, 600][random.below(3)];
        let shape = [1 + random.below(20), 1 + random.below(400), 1 + random.below(inner)];
        // Up to sixteen parts per axis. With one value per part, the largest shape would have five million
        // groups.
        let (element, parts) = (random.element(), 1 + random.below(16));
        let part = shape[1].div_ceil(parts);
        case(random, reduction, element, shape, part)
    }
}

/// Returns the lines along the axis of `x`, which is `[outer, axis, inner]`, in the order of `[outer,
/// inner]`.
pub(crate) fn lines(
    x: &[f64],
    [_, axis, inner]: [usize; 3],
) -> impl Iterator<Item = impl ExactSizeIterator<Item = f64> + Clone> {
    x.chunks(axis * inner)
        .flat_map(move |outer| (0..inner).map(move |column| outer[column..].iter().step_by(inner).copied()))
}

fn case(
    random: &mut Random,
    reduction: Reduction,
    element: ElementType,
    shape: [usize; 3],
    part: usize,
) -> Case {
    let [_, axis, inner] = shape;
    let mut x = random.floats(shape.iter().product(), 1.0);
    x.iter_mut().for_each(|x| *x += 0.5);
    let x = Stored::new(element, &x);
    // The divisor of a mean differs from the number of values in a part, as in the second of two launches.
    let of_part = |part: &[f64]| {
        let whole = part.len() / inner;
        let value = |line| match reduction {
            Reduction::Mean => Reduction::Sum.of(line) / (axis + 1) as f64,
            _ => reduction.of(line),
        };
        lines(part, [1, whole, inner]).map(value).collect::<Vec<_>>()
    };
    let parts = x.values.chunks(axis * inner).flat_map(|outer| outer.chunks(part * inner));
    let wanted = parts.flat_map(of_part).collect();
    let label = format!("{reduction:?} of {element} {shape:?} in parts of {part}");
    let build = Build::new(Kernel::Reduce, label, &constants(reduction, element, shape, [part, axis + 1]));
    build.bytes(x.bytes).expect_elements(1, ElementType::F32, wanted)
}

/// Returns a case whose lines contain NaN and infinities. The length of the lines is a power of two, because
/// some devices do not round f32 quotients by other lengths correctly.
fn edges(random: &mut Random, reduction: Reduction) -> Case {
    let shape = [2, 32, 4];
    let mut x = vec![-1.0; shape.iter().product()];
    for (column, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        x[random.below(32) * 4 + column] = value;
    }
    let values: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let wanted = lines(&values, shape).map(|line| Some(reduction.of(line) as f32)).collect();
    let constants = constants(reduction, ElementType::F32, shape, [32, 32]);
    let case = Build::new(Kernel::Reduce, format!("{reduction:?} of what is special"), &constants).floats(&x);
    case.floats(&[7.0; 8]).expect(1, Content::Same(wanted)).done()
}

fn constants(
    reduction: Reduction,
    element: ElementType,
    [outer, axis, inner]: [usize; 3],
    [part, count]: [usize; 2],
) -> [usize; 7] {
    [reduction as usize, elements::number(element) as usize, outer, axis, inner, part, count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_only_few_long_lines() {
        for (shape, parts) in [
            ([1, 10_000_000, 1], 512),
            ([4, 10_000_000, 1], 128),
            ([1000, 1_000_000, 1], 1),
            ([1, 8191, 1], 1),
            ([1, 100_000, 1], 12),
            ([1, 4096, 64], 32),
            ([0, 1, 0], 1),
        ] {
            assert_eq!(u32::div_ceil(shape[1], part(shape)), parts, "{shape:?}");
        }
        assert_eq!(part([1, 0, 1]), 0);
    }

    #[test]
    fn only_the_first_launch_dimension_is_large() {
        let constants = |shape| constants(Reduction::Sum, ElementType::F32, shape, [1, 1]).map(|c| c as u32);
        assert_eq!(grid(&constants([1, 1, 16_777_219])), [65_537, 1, 1]);
        assert_eq!(grid(&constants([7, 2, 300])), [14, 1, 2]);
        assert_eq!(grid(&constants([65_537, 65_535, 1])), [65_537, 1, 65_535]);
    }
}
