//! Gated norm: the product of rows and a function of gates, with an RMS norm of groups of columns before or after it, or
//! without a norm.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, groups, width]` |
//! | 2 | gates: f32 `[rows, pitch]` |
//! | 3 | weights of the norm: f32 `[weights]`; not read without a norm |
//! | 4 | out: f32 `[rows, groups, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the groups, the width, the
//! number of weights (the width, if all groups share them, or that of all columns), the pitch, the column of the first gate,
//! the distance between the gates of two groups, ε (the bits of an f32), the [`Order`], and the [`Function`].

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Order of norm and gate. The kernel receives the discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// Norm first.
    NormFirst = 0,
    /// Gate first.
    GateFirst = 1,
    /// No norm.
    NoNorm = 2,
}

/// Function of the gates. The kernel receives the discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    /// x · sigmoid(x).
    Silu = 0,
    /// Sigmoid.
    Sigmoid = 1,
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "gated_norm",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 11,
    extents: |constants, extents| {
        let [rows, _, groups, width, weights, pitch, column, stride, _, order, function] = array(constants);
        let last = groups.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(column));
        let fits = last.and_then(|last| last.checked_add(width)).is_some_and(|end| end <= pitch);
        let has_weights = weights == width || groups.checked_mul(width) == Some(weights);
        if !fits || !has_weights || groups == 0 || order > 2 || function > 1 {
            return extents.fill(IMPOSSIBLE);
        }
        let (x, weights) = (words(&[rows, groups, width]), if order == 2 { 0 } else { words(&[weights]) });
        extents.copy_from_slice(&[HEADER_BYTES, x, words(&[rows, pitch]), weights, x]);
    },
};

/// Returns a grid of rows × groups.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2], 1]
}

pub(crate) struct GatedNorm;

impl Spec for GatedNorm {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [(1, 1), (4, 128), (3, 70), (2, 300), (5, 64), (1, 1000)];
        let mut out = Vec::new();
        for (shape, (groups, width)) in ROW_SHAPES.into_iter().zip(sizes) {
            let forms = [
                (Order::NormFirst, Function::Silu),
                (Order::GateFirst, Function::Silu),
                (Order::NoNorm, Function::Sigmoid),
                (Order::NormFirst, Function::Sigmoid),
            ];
            // Without rows, no form does anything.
            for (order, function) in forms.into_iter().take(if shape.rows == 0 { 1 } else { forms.len() }) {
                let is_shared = order == Order::NormFirst;
                out.push(case(random, shape, (groups, width, is_shared), order, function));
            }
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 20);
        let size = (1 + random.below(6), 1 + random.below(400), random.below(2) == 0);
        let order = [Order::NormFirst, Order::GateFirst, Order::NoNorm][random.below(3)];
        let function = [Function::Silu, Function::Sigmoid][random.below(2)];
        case(random, shape, size, order, function)
    }
}

fn case(
    random: &mut Random,
    shape: RowShape,
    (groups, width, is_shared): (usize, usize, bool),
    order: Order,
    function: Function,
) -> Case {
    let epsilon = 1e-5_f32;
    let (column, stride) = (3, width + 2);
    let pitch = column + groups * stride;
    let x = random.floats(shape.capacity * groups * width, 2.0);
    let gates = random.floats(shape.capacity * pitch, 4.0);
    let count = if is_shared { width } else { groups * width };
    let weights = if order == Order::NoNorm { vec![f32::NAN] } else { random.floats(count, 1.5) };
    let mut expected = Vec::new();
    for (at, values) in x.chunks_exact(width).enumerate() {
        let (row, group) = (at / groups, at % groups);
        let gate = |i: usize| {
            let gate = f64::from(gates[row * pitch + column + group * stride + i]);
            let sigmoid = 1.0 / (1.0 + (-gate).exp());
            if function == Function::Silu { gate * sigmoid } else { sigmoid }
        };
        let mut values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        if order == Order::GateFirst {
            values.iter_mut().enumerate().for_each(|(i, value)| *value *= gate(i));
        }
        if order != Order::NoNorm {
            let mean = values.iter().map(|value| value * value).sum::<f64>() / width as f64;
            let weights = &weights[if is_shared { 0 } else { group * width }..];
            let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
            values.iter_mut().zip(weights).for_each(|(value, weight)| *value *= scale * f64::from(*weight));
        }
        if order != Order::GateFirst {
            values.iter_mut().enumerate().for_each(|(i, value)| *value *= gate(i));
        }
        expected.extend(values.into_iter().map(|value| (row < shape.rows).then_some(value)));
    }
    let label = format!("{groups} groups, {order:?}, {function:?}, {is_shared}, {}", shape.label(width));
    let constants = [shape.capacity, shape.count_word as usize, groups, width, count, pitch, column, stride];
    let kinds = [epsilon.to_bits() as usize, order as usize, function as usize];
    let build = Build::new(Kernel::GatedNorm, label, &[&constants[..], &kinds].concat());
    let build = build.words(&shape.header()).floats(&x).floats(&gates).floats(&weights);
    build.words(&vec![u32::MAX; expected.len()]).expect_f32(4, expected)
}
