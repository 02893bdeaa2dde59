//! Binary: applies an operation to pairs of values. Either input can be broadcast along any dimension.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | a: values of any element type, addressed by strides |
//! | 1 | b: values of the same type, addressed by strides |
//! | 2 | out: values of the same type, contiguous; their number is the product of the sizes; written |
//!
//! The constants are the [operation](Operation), the [number](crate::elements::number) of the element type, 6
//! sizes, 6 strides of a, and 6 strides of b, each with the outermost dimension first. Strides are in values.
//! An input with a stride of zero is broadcast along that dimension. There are fewer than 2^32 values.
//! [`crate::elements`] defines the padding after an odd number of 16-bit values.
//!
//! The operations use IEEE f32 arithmetic. Max and min are NaN if either input is NaN.

use crate::abi::{IMPOSSIBLE, array, product};
use crate::cases::{Build, Case, Content, Random, Stored};
use crate::copy::padded;
use crate::elements::{self, Operator, RANK, in_a_word};
use crate::kernel::{ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// A binary operation. The kernel receives its discriminant as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
    /// The larger value.
    Max,
    /// The smaller value.
    Min,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 6] =
        [Operation::Add, Operation::Sub, Operation::Mul, Operation::Div, Operation::Max, Operation::Min];

    /// Applies the operation to `a` and `b` in f64.
    pub fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Operation::Add => a + b,
            Operation::Sub => a - b,
            Operation::Mul => a * b,
            Operation::Div => a / b,
            Operation::Max | Operation::Min if a.is_nan() || b.is_nan() => f64::NAN,
            Operation::Max => a.max(b),
            Operation::Min => a.min(b),
        }
    }
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "binary",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 2 + 3 * RANK,
    extents: |constants, extents| {
        let [operation, kind, shape @ ..] = array::<{ 2 + 3 * RANK }>(constants);
        if operation as usize >= Operation::ALL.len() {
            extents.fill(IMPOSSIBLE);
            return;
        }
        let (sizes, strides) = shape.split_at(RANK);
        let (a, b) = strides.split_at(RANK);
        let bytes = |count| elements::bytes(kind, count);
        let [a, b] = [a, b].map(|strides| bytes(elements::span(sizes, strides)));
        extents.copy_from_slice(&[a, b, bytes(product(sizes))]);
    },
};

/// Returns a grid with one work item per output word.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let count = product(&constants[2..2 + RANK]);
    elements::grid(count.div_ceil(in_a_word(constants[1]).unwrap_or(1).into()) as u32)
}

pub(crate) struct Binary;

impl Spec for Binary {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::numbers(&[include_str!("binary.wgsl")]);
        Some(Operator { grid, c: include_str!("binary.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes: [(_, &[u32], &[u32], &[u32]); 7] = [
            (Operation::Add, &[1], &[1], &[1]),
            (Operation::Sub, &[1009], &[1], &[0]),
            (Operation::Mul, &[37, 41], &[41, 1], &[0, 1]),
            (Operation::Div, &[37, 41], &[0, 1], &[1, 0]),
            (Operation::Max, &[3, 5, 7, 11], &[385, 77, 11, 1], &[0, 11, 0, 1]),
            (Operation::Min, &[5, 3, 2, 2, 3, 4], &[0, 24, 12, 0, 4, 1], &[36, 12, 0, 6, 2, 0]),
            (Operation::Mul, &[65, 65], &[65, 1], &[1, 65]),
        ];
        let mut out = Vec::new();
        for (i, (operation, sizes, a, b)) in shapes.into_iter().enumerate() {
            out.push(case(random, operation, ElementType::F32, sizes, [a, b]));
            out.push(case(random, operation, ElementType::ALL[1 + i % 2], sizes, [a, b]));
        }
        out.extend(Operation::ALL.map(edges));
        out
    }

    /// Returns a case of random shape with one to six dimensions. Some dimensions are broadcast.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let operation = Operation::ALL[random.below(Operation::ALL.len())];
        let sizes: Vec<u32> = (0..1 + random.below(RANK)).map(|_| 1 + random.below(8) as u32).collect();
        let mut strides = || {
            let mut stride = 1;
            let mut out = vec![0; sizes.len()];
            for (out, size) in out.iter_mut().zip(&sizes).rev().filter(|_| random.below(4) > 0) {
                *out = stride;
                stride *= size;
            }
            out
        };
        let (a, b) = (strides(), strides());
        let element = random.element();
        case(random, operation, element, &sizes, [&a, &b])
    }
}

fn constants(operation: Operation, element: ElementType, sizes: &[u32], [a, b]: [&[u32]; 2]) -> Vec<usize> {
    let shape = padded(sizes, 1).chain(padded(a, 0)).chain(padded(b, 0));
    [operation as usize, elements::number(element) as usize].into_iter().chain(shape).collect()
}

fn case(
    random: &mut Random,
    operation: Operation,
    element: ElementType,
    sizes: &[u32],
    [a, b]: [&[u32]; 2],
) -> Case {
    let [x, mut y] = [a, b].map(|strides| random.floats(elements::span(sizes, strides) as usize, 3.0));
    if operation == Operation::Div {
        y.iter_mut().for_each(|y| *y += y.signum());
    }
    let count = sizes.iter().product::<u32>() as usize;
    let [x, y] = [x, y].map(|values| Stored::new(element, &values));
    let value = |of: &Stored, strides, i| of.values[elements::place(i, sizes, strides)];
    let wanted = (0..count).map(|i| operation.of(value(&x, a, i), value(&y, b, i))).collect();
    let label = format!("{operation:?} of {element}, {sizes:?} by {a:?} and {b:?}");
    let case = Build::new(Kernel::Binary, label, &constants(operation, element, sizes, [a, b]));
    case.bytes(x.bytes).bytes(y.bytes).expect_elements(2, element, wanted)
}

/// Returns a case with all pairs of special values whose result is exact in f32.
fn edges(operation: Operation) -> Case {
    let values = [0.0, -0.0, 1.0, -2.0, 4.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let pairs = values.iter().flat_map(|a| values.map(|b| (f64::from(*a), f64::from(b))));
    // The languages leave the result of a division by zero undefined, so it is not checked.
    let is_open = |b: f64| operation == Operation::Div && b == 0.0;
    let wanted = pairs.map(|(a, b)| if is_open(b) { None } else { Some(operation.of(a, b)) }).collect();
    let constants = constants(operation, ElementType::F32, &[8, 8], [&[1, 0], &[0, 1]]);
    let case = Build::new(Kernel::Binary, format!("{operation:?} of what is special"), &constants);
    let case = case.floats(&values).floats(&values).floats(&[7.0; 64]);
    case.expect(2, Content::SomeSame(wanted)).done()
}
