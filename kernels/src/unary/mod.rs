//! Unary: applies a function to each value.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: `[count]`, values of any element type |
//! | 1 | out: `[count]` of the same type, written |
//!
//! The constants are the [function](Function), the [number](crate::elements::number) of the element type, and
//! the count. Intermediate values are f32. [`crate::elements`] defines the padding after an odd number of
//! 16-bit values.
//!
//! Each function follows its definition for real numbers. At ±∞, the result is the limit of the function. NaN
//! maps to NaN. Large arguments never yield NaN. The logarithm of zero is −∞. The logarithm and the square
//! root of negative values are NaN.

use crate::abi::{IMPOSSIBLE, array};
use crate::cases::{Build, Case, Content, Random, Stored};
use crate::elements::{self, Operator, in_a_word};
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};
use serde::Serialize;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// A function of one value. The kernel receives its discriminant as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Function {
    /// The value, or zero if it is negative.
    Relu,
    /// The square of [`Function::Relu`].
    SquaredRelu,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// e^x.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// Absolute value.
    Abs,
    /// The negated value.
    Neg,
    /// x · sigmoid(x).
    Silu,
    /// x · Φ(x), where Φ is the cumulative distribution function of the standard normal distribution.
    Gelu,
    /// The common tanh approximation of [`Function::Gelu`]: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
    GeluTanh,
}

impl Function {
    /// All functions.
    pub const ALL: [Function; 12] = [
        Function::Relu,
        Function::SquaredRelu,
        Function::Sigmoid,
        Function::Tanh,
        Function::Exp,
        Function::Log,
        Function::Sqrt,
        Function::Abs,
        Function::Neg,
        Function::Silu,
        Function::Gelu,
        Function::GeluTanh,
    ];

    /// Applies the function to `x` in f64.
    pub fn of(self, x: f64) -> f64 {
        match self {
            _ if x.is_nan() => x,
            Function::Relu => x.max(0.0),
            Function::SquaredRelu => x.max(0.0).powi(2),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Tanh => x.tanh(),
            Function::Exp => x.exp(),
            Function::Log => x.ln(),
            Function::Sqrt => x.sqrt(),
            Function::Abs => x.abs(),
            Function::Neg => -x,
            Function::Silu | Function::Gelu | Function::GeluTanh if x == f64::NEG_INFINITY => -0.0,
            Function::Silu => x / (1.0 + (-x).exp()),
            Function::Gelu => x * normal(x),
            // 1 + tanh(y) equals 2 · sigmoid(2y), which stays precise where the tangent is near −1.
            Function::GeluTanh => {
                x * Function::Sigmoid.of(2.0 * FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3)))
            }
        }
    }
}

/// Computes Φ(x) = (1 + erf(x / √2)) / 2. Uses the series of erf for small |x|, and the continued fraction of
/// erfc for large |x|. Source: Abramowitz and Stegun, 7.1.6 and 7.1.14.
fn normal(x: f64) -> f64 {
    let z = x.abs() * FRAC_1_SQRT_2;
    let density = (-z * z).exp() / std::f64::consts::PI.sqrt();
    let tail = if z < 3.0 {
        let terms = std::iter::successors(Some((1.0, z)), |(n, term)| {
            Some((n + 2.0, term * 2.0 * z * z / (n + 2.0)))
        });
        0.5 - density * terms.map(|(_, term)| term).take_while(|term| *term > 1e-18).sum::<f64>()
    } else {
        density / 2.0 / (1..60).rev().fold(z, |rest, n| z + f64::from(n) / 2.0 / rest)
    };
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "unary",
    bindings: &[Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [function, kind, count] = array(constants);
        let exists = (function as usize) < Function::ALL.len();
        extents.fill(if exists { elements::bytes(kind, count.into()) } else { IMPOSSIBLE });
    },
};

/// Returns a grid with one work item per output word.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [_, kind, count] = array(constants);
    elements::grid(count.div_ceil(in_a_word(kind).unwrap_or(1)))
}

pub(crate) struct Unary;

impl Spec for Unary {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::numbers(&[wgsl::elementwise::TANH, include_str!("unary.wgsl")]);
        Some(Operator { grid, c: include_str!("unary.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (i, function) in Function::ALL.into_iter().enumerate() {
            let count = [1, 257, 1009, 4097][i % 4];
            out.push(case(random, function, ElementType::F32, count, 6.0));
            out.push(case(random, function, ElementType::ALL[1 + i % 2], count, 6.0));
            out.push(edges(function));
        }
        use Function::{Exp, Gelu, GeluTanh, Log, Sigmoid, Silu, Tanh};
        let tails =
            [Sigmoid, Exp, Silu, Gelu, GeluTanh].into_iter().flat_map(|f| [(f, -4.5, 0.5), (f, -8.0, 0.5)]);
        let small = [(Tanh, 0.0, 1e-3), (Tanh, 0.25, 0.05), (Log, 1.0, 1e-4), (Log, 1.0, 0.3)];
        let parts = tails.chain(small).chain([(Exp, -80.0, 1.0), (Sigmoid, -80.0, 1.0), (Silu, -80.0, 1.0)]);
        out.extend(parts.map(|part| small_values(random, part)));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let function = Function::ALL[random.below(Function::ALL.len())];
        let (count, size) = (1 + random.below(3000), [0.01, 1.0, 20.0][random.below(3)]);
        let element = random.element();
        case(random, function, element, count, size)
    }
}

fn case(random: &mut Random, function: Function, element: ElementType, count: usize, size: f32) -> Case {
    let mut x = random.floats(count, size);
    if matches!(function, Function::Log | Function::Sqrt) {
        x.iter_mut().for_each(|x| *x = x.abs() + 1e-6);
    }
    case_of(function, element, &x, format!("{function:?} of {count} {element} up to {size}"))
}

/// Returns a case whose arguments are within `size` of `middle`. All results have a similar magnitude, so
/// that no large result hides the relative error of a small one.
fn small_values(random: &mut Random, (function, middle, size): (Function, f32, f32)) -> Case {
    let x: Vec<f32> = random.floats(300, size).into_iter().map(|x| middle + x).collect();
    case_of(function, ElementType::F32, &x, format!("{function:?} up to {size} from {middle}"))
}

fn case_of(function: Function, element: ElementType, x: &[f32], label: String) -> Case {
    let (x, count) = (Stored::new(element, x), x.len());
    let constants = [function as usize, elements::number(element) as usize, count];
    let case = Build::new(Kernel::Unary, label, &constants).bytes(x.bytes);
    case.expect_elements(1, element, x.values.into_iter().map(|x| function.of(x)).collect())
}

/// Returns a case of special arguments, for which the function's value is either NaN or exactly representable
/// in f32.
fn edges(function: Function) -> Case {
    let infinity = f32::INFINITY;
    let mut x = vec![0.0, -0.0, infinity, -infinity, f32::NAN];
    match function {
        Function::Log => x.push(-1.0),
        Function::Sqrt => x.extend([-1.0, -1e30]),
        _ => x.extend([200.0, -200.0, 1e30, -1e30, f32::MAX, f32::MIN]),
    }
    let wanted = x.iter().map(|x| Some(function.of(f64::from(*x)) as f32)).collect();
    let case =
        Build::new(Kernel::Unary, format!("{function:?} at its edges"), &[function as usize, 0, x.len()]);
    case.floats(&x).floats(&vec![7.0; x.len()]).expect(1, Content::Same(wanted)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        // Φ from tables.
        for (x, wanted) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-2.0, 0.022_750_131_948_179_21),
            (4.2, 0.999_986_654_250_984_1),
            (-5.0, 2.866_515_718_791_939e-7),
        ] {
            assert!((normal(x) / wanted - 1.0).abs() < 1e-12, "{x}: {}", normal(x));
        }
        assert_eq!(Function::Silu.of(f64::NEG_INFINITY), 0.0);
        assert_eq!(Function::SquaredRelu.of(-3.0), 0.0);
        assert!((Function::GeluTanh.of(1.0) - 0.841_191_990_607_477).abs() < 1e-12);
        assert!(Function::ALL.iter().all(|f| f.of(f64::NAN).is_nan()));
        assert!(Function::ALL.iter().enumerate().all(|(i, f)| *f as usize == i));
    }
}
