//! Operators on single values, and constants of kernels that compute on the values of strided tensors.

use super::lower::{Call, Cost, Lower, Output, Shape, Site, Work};
use super::weight::{Affine, Weight};
use ragtag_kernels::binary::Operation;
use ragtag_kernels::elements::{self, RANK};
use ragtag_kernels::silu_mul::Gate;
use ragtag_kernels::unary::Function;
use ragtag_kernels::{Activations, ElementType, Kernel};

/// Product of all values and a number, or a number for each run of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The number and the length of each run, which together are all columns.
    pub factors: Vec<(f32, u32)>,
}

impl Lower for Scale {
    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Factors(self.factors.clone())]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(1, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = match self.factors[..] {
            [_] => product([1, site.rows * site.output.width], [0, 0]),
            _ => product([site.rows, site.output.width], [0, 1]),
        };
        vec![site.call(Kernel::Binary, constants)]
    }
}

/// Product of the first columns and the values of a tensor, which repeat themselves. The output has these columns.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleBy {
    /// Name of the tensor.
    pub weight: String,
    /// Number of its values, a divisor of the number of columns.
    pub period: u32,
}

impl Lower for ScaleBy {
    fn shape(&self, _: Shape) -> Option<Shape> {
        None
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: vec![self.weight.clone()], affine: Affine::IDENTITY }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(1, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (columns, pitch) = (site.output.width, site.x().width);
        let sizes = [site.rows, columns / self.period, self.period];
        let mut call = site.call(Kernel::Binary, product_of(sizes, [pitch, self.period, 1], [0, 0, 1]));
        call.arguments[0] = site.x().columns(0, columns);
        vec![call]
    }
}

/// xIELU of each value. The function has learned numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Xielu {
    /// The numbers, if no tensors hold them.
    pub numbers: [f32; 4],
    /// Names of the tensors that hold them.
    pub tensors: Vec<String>,
}

impl Lower for Xielu {
    fn weights(&self) -> Vec<Weight> {
        let known = || Weight::Factors(self.numbers.map(|number| (number, 1)).to_vec());
        let vector = || Weight::Vector { tensors: self.tensors.clone(), affine: Affine::IDENTITY };
        vec![if self.tensors.is_empty() { known() } else { vector() }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(8, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        vec![site.row_call(Kernel::Xielu, &[site.output.width])]
    }
}

/// A function of each value.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub function: Function,
}

impl Lower for Unary {
    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(6, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = vec![self.function as u32, f32_number(), site.rows * site.output.width];
        vec![site.call(Kernel::Unary, constants)]
    }
}

/// A function of the first half of each input row, multiplied by the second half of the row.
#[derive(Clone, Debug, PartialEq)]
pub struct SiluMul {
    /// The function.
    pub function: Gate,
    /// Type of the output.
    pub output: Activations,
}

impl Lower for SiluMul {
    fn shape(&self, x: Shape) -> Option<Shape> {
        assert!(x.width.is_multiple_of(2), "a gate and an up projection in {} columns", x.width);
        Some(Shape { width: x.width / 2, ..x })
    }

    fn output(&self) -> Output {
        Output::Rows(self.output)
    }

    fn output_type(&mut self) -> Option<&mut Activations> {
        Some(&mut self.output)
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(6, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = [site.output.width, self.function as u32];
        vec![site.row_call(Kernel::SiluMul(self.output), &constants)]
    }
}

/// Sum of the two inputs, which overwrites the first input.
#[derive(Clone, Debug, PartialEq)]
pub struct Add;

impl Lower for Add {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn overwrites(&self) -> Option<u8> {
        Some(0)
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(1, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let mut call = site.row_call(Kernel::Add, &[site.output.width]);
        call.arguments[2] = site.inputs[1].expect("a second input").argument;
        vec![call]
    }
}

/// Product of each row of the first input and its number, the only column of the second input, or of all values of both.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRows;

impl Lower for ScaleRows {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1]]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(1, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (factors, width) = (site.inputs[1].expect("factors"), site.output.width);
        let strides = if factors.width == 1 { [1, 0] } else { [width, 1] };
        let mut call = site.call(Kernel::Binary, product([site.rows, width], strides));
        call.arguments.insert(1, factors.argument);
        vec![call]
    }
}

/// Conversion of the input to int8 or f16 activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantize {
    /// Type of the output.
    pub output: Activations,
}

impl Lower for Quantize {
    fn output(&self) -> Output {
        Output::Rows(self.output)
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(2, 0)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        vec![site.row_call(Kernel::Quantize(self.output), &[site.output.width])]
    }
}

/// Number of the type f32 in constants.
pub(super) fn f32_number() -> u32 {
    elements::number(ElementType::F32)
}

/// Returns the constants for copying `rows` rows of `width` values. The starts of the source rows are `pitch`
/// values apart.
pub(crate) fn row_copy(types: [ElementType; 2], [rows, width]: [u32; 2], pitch: u32) -> Vec<u32> {
    [&types.map(elements::number)[..], &[0], &walk(1, [rows, width]), &walk(0, [pitch, 1])].concat()
}

/// Returns the constants of the product of rows of values, and factors with the given strides.
fn product([rows, width]: [u32; 2], strides: [u32; 2]) -> Vec<u32> {
    product_of([rows, width], [width, 1], strides)
}

/// Returns the constants of the product of values and factors, both with strides.
fn product_of<const N: usize>(sizes: [u32; N], values: [u32; N], factors: [u32; N]) -> Vec<u32> {
    let walks = [walk(1, sizes), walk(0, values), walk(0, factors)];
    [&[Operation::Mul as u32, f32_number()][..], &walks.concat()].concat()
}

/// Returns sizes or strides. `outer` stands for the dimensions that are missing.
fn walk<const N: usize>(outer: u32, inner: [u32; N]) -> [u32; RANK] {
    let mut dimensions = [outer; RANK];
    dimensions[RANK - N..].copy_from_slice(&inner);
    dimensions
}
