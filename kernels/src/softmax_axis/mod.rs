//! Softmax of lines of values along an axis.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: `[outer, axis, inner]`, values of any element type |
//! | 1 | out: f32, of the same shape as x, written |
//!
//! The constants are the [number](crate::elements::number) of the element type, outer, axis, and inner.
//!
//! out = exp(x − max) / Σ exp(x − max), in f32. The probability of −∞ is zero. If all
//! values of a line are −∞, its output is zero. If a line contains NaN or +∞, all its outputs are NaN. A work
//! group computes adjacent columns, as in [`crate::reduce`].

use crate::abi::{array, product, words};
use crate::cases::{Build, Case, Content, Random, Stored};
use crate::elements::{self, Operator};
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::reduce::{lines, strips};
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "softmax_axis",
    bindings: &[Access::Read, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [kind, shape @ ..] = array::<4>(constants);
        extents.copy_from_slice(&[elements::bytes(kind, product(&shape)), words(&shape)]);
    },
};

/// Returns a grid of column strips, as in [`crate::reduce`].
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [_, outer, axis, inner] = array(constants);
    if axis == 0 { [0; 3] } else { [strips(outer, inner), 1, 1] }
}

/// Computes the probabilities of one line in f64.
fn line_reference(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |max, x| max.max(f64::from(*x)));
    if row.iter().all(|x| *x == f32::NEG_INFINITY) {
        return vec![0.0; row.len()];
    }
    let weights: Vec<f64> = row.iter().map(|x| (f64::from(*x) - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Computes the probabilities in f64, in the order of `x`.
fn reference(x: &[f64], shape: [usize; 3]) -> Vec<f64> {
    let [_, axis, inner] = shape;
    let mut out = vec![0.0; x.len()];
    for (i, line) in lines(x, shape).enumerate() {
        let first = i / inner * axis * inner + i % inner;
        let row: Vec<f32> = line.map(|x| x as f32).collect();
        for (j, probability) in line_reference(&row).into_iter().enumerate() {
            out[first + j * inner] = probability;
        }
    }
    out
}

pub(crate) struct SoftmaxAxis;

impl Spec for SoftmaxAxis {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::in_columns(include_str!("softmax_axis.wgsl"));
        Some(Operator { grid, c: include_str!("softmax_axis.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = [
            [1, 1, 1],
            [7, 257, 1],
            [3, 31, 5],
            [2, 70, 67],
            [1, 3, 1031],
            [5, 1, 3],
            [1, 2000, 2],
            [3, 2, 300],
        ];
        let mut out = Vec::new();
        for (i, shape) in shapes.into_iter().enumerate() {
            out.push(case(random, ElementType::F32, shape));
            out.push(case(random, ElementType::ALL[1 + i % 2], shape));
        }
        out.push(edges(random));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let inner = [2, 50, 300][random.below(3)];
        let shape = [1 + random.below(20), 1 + random.below(400), 1 + random.below(inner)];
        let element = random.element();
        case(random, element, shape)
    }
}

fn case(random: &mut Random, element: ElementType, shape: [usize; 3]) -> Case {
    let mut x = random.floats(shape.iter().product(), 20.0);
    x.iter_mut().skip(5).step_by(23).for_each(|x| *x = f32::NEG_INFINITY);
    let x = Stored::new(element, &x);
    let wanted = reference(&x.values, shape);
    let case = Build::new(Kernel::SoftmaxAxis, format!("{element} {shape:?}"), &constants(element, shape));
    case.bytes(x.bytes).expect_elements(1, ElementType::F32, wanted)
}

fn constants(element: ElementType, [outer, axis, inner]: [usize; 3]) -> [usize; 4] {
    [elements::number(element) as usize, outer, axis, inner]
}

/// Returns a case of lines whose probabilities are all zero, one or NaN.
fn edges(random: &mut Random) -> Case {
    const AXIS: usize = 37;
    let shape = [1, AXIS, 6];
    let none = f32::NEG_INFINITY;
    let mut x: Vec<f32> = (0..AXIS * 6).map(|i| if i % 6 < 4 { none } else { random.float(3.0) }).collect();
    let mut put = |column, value| x[random.below(AXIS) * 6 + column] = value;
    put(1, -3.4e38); // The only finite value.
    put(2, f32::NAN);
    put(4, f32::NAN);
    put(5, f32::INFINITY);
    (x[2 * 6 + 3], x[(AXIS - 1) * 6 + 3]) = (-3.4e38, 3.4e38);
    let values: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let wanted = reference(&values, shape).into_iter().map(|p| Some(p as f32)).collect();
    let constants = constants(ElementType::F32, shape);
    let case = Build::new(Kernel::SoftmaxAxis, "infinities and NaN".into(), &constants).floats(&x);
    case.floats(&vec![7.0; x.len()]).expect(1, Content::Same(wanted)).done()
}

#[cfg(test)]
mod tests {
    use super::line_reference as reference;

    #[test]
    fn the_reference_matches_the_definition() {
        let quarter = [0.25; 4];
        assert_eq!(reference(&[1e30; 4]), quarter);
        assert_eq!(reference(&[f32::NEG_INFINITY; 2]), [0.0; 2]);
        assert_eq!(reference(&[0.0, f32::NEG_INFINITY]), [1.0, 0.0]);
        let odds = reference(&[2.0, 2.0 + std::f32::consts::LN_2]);
        assert!((odds[1] / odds[0] - 2.0).abs() < 1e-6);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(reference(&[bad, 0.0, f32::NEG_INFINITY]).iter().all(|p| p.is_nan()));
        }
        assert!(reference(&[f32::NEG_INFINITY, f32::NAN]).iter().all(|p| p.is_nan()));
    }
}
