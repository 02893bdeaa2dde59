//! Matrix products, and operators that prepare their weights and outputs.

use super::elementwise::row_copy;
use super::lower::{Argument, Call, Cost, Lower, Output, Part, Shape, Site, Tensor, Work};
use super::norm::RmsNorm;
use super::weight::{Affine, Weight};
use crate::stack::{Stack, StackedMatrix};
use ragtag_kernels::{Activations, ElementType, Kernel, Layout, TensorType, layout, matmul, widen};

/// Number of the input that provides the dequantized weights.
pub(crate) const WIDENED: u8 = 2;

/// Product of the first input and the weights, written to columns of the output.
///
/// The second input, if any, provides the previous contents of the output: columns that other products wrote, or
/// values to which this product is added. The third input, if any, is the dequantized weights.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// The weights.
    pub weights: Stack,
    /// Type of the first input.
    pub activations: Activations,
    /// First column that the product writes.
    pub column: u32,
    /// Whether the product is added to the previous contents.
    pub accumulate: bool,
    /// RMS norm of the first input, if the device has kernels that fuse the norm into the product.
    pub norm: Option<RmsNorm>,
    /// Whether the output is SiLU of the first half of the product's columns, multiplied by the second half. A gated
    /// product has a norm.
    pub gated: bool,
}

impl Lower for MatMul {
    fn inputs(&self) -> &'static [&'static [u8]] {
        if self.accumulate { &[&[0, 1], &[0, 1, 2]] } else { &[&[0], &[0, 1], &[0, 2], &[0, 1, 2]] }
    }

    fn shape(&self, _: Shape) -> Option<Shape> {
        None
    }

    fn input_type(&mut self) -> Option<&mut Activations> {
        Some(&mut self.activations)
    }

    fn overwrites(&self) -> Option<u8> {
        Some(1)
    }

    fn weights(&self) -> Vec<Weight> {
        let norm = self.norm.iter().flat_map(RmsNorm::weights);
        [Weight::Matrix(self.weights.clone())].into_iter().chain(norm).collect()
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let infos = self.weights.infos(work.weights).expect("weights");
        let values: u64 = infos.iter().map(|t| t.values()).sum();
        let matrix = StackedMatrix::new(work.weights, &self.weights, |_| Layout::Rows16).expect("a layout");
        let (flops, read_bytes) = (work.rows * 2 * values, matrix.resident().bytes());
        Cost { flops, read_bytes, ..Cost::default() }
    }

    /// Returns one launch per part of the weights, which computes the columns of that part.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let parts = &site.weights[0];
        assert!(!self.gated || parts.len() == 1, "gates of {} are in several parts", self.weights.name());
        let mut calls = Vec::new();
        for part in parts {
            let (tensor_type, matrix) = match site.inputs[usize::from(WIDENED)] {
                Some(widened) => {
                    let (call, matrix) = dequantize(part, widened);
                    calls.extend((parts.len() > 1).then_some(call));
                    (TensorType::F16, matrix)
                }
                None => (part.tensor_type, part.argument),
            };
            let columns = if self.gated { part.rows / 2 } else { part.rows };
            let y = site.output.columns(self.column + part.first_row, columns);
            calls.push(match matmul::takes_columns(part.columns) {
                true => self.product(site, part, (tensor_type, matrix), y),
                false => self.gemm(site, part, y),
            });
        }
        calls
    }
}

impl MatMul {
    /// Returns the product with one part of the weights, which the launch reads as `matrix`.
    fn product(
        &self,
        site: &Site,
        part: &Part,
        (tensor_type, matrix): (TensorType, Argument),
        y: Argument,
    ) -> Call {
        let mut arguments = vec![site.params, matrix, site.x().argument, y];
        let accumulate = u32::from(self.accumulate);
        let mut constants =
            vec![site.rows, site.count, part.rows, part.columns, accumulate, site.output.width];
        let kernel = match &self.norm {
            None => Kernel::MatMul(tensor_type, self.activations),
            Some(norm) => {
                arguments.push(site.weight(1));
                constants.push(norm.epsilon.to_bits());
                if self.gated { Kernel::GatedMatMul(tensor_type) } else { Kernel::NormMatMul(tensor_type) }
            }
        };
        Call { kernel, arguments, constants }
    }

    /// Returns the product of f32 rows and one part of the weights, whose rows have any length.
    fn gemm(&self, site: &Site, part: &Part, y: Argument) -> Call {
        assert!(self.norm.is_none(), "{self:?} is not a plain product");
        let (n, k, x) = (part.rows, part.columns, site.x());
        assert_eq!(x.width, k, "columns of {self:?}");
        let pitch = layout::pitch_values(k);
        let beta = if self.accumulate { 1f32 } else { 0.0 };
        let shape = [site.rows, n, k, 0, 1, k, pitch, site.output.width];
        let constants = [&shape[..], &[1, 0, 0, 0], &[1f32, beta].map(f32::to_bits)].concat();
        Call {
            kernel: Kernel::Gemm(ElementType::F32),
            arguments: vec![x.argument, part.argument, y],
            constants,
        }
    }
}

/// Quantized weights, dequantized to an f16 matrix for one product. The operator has no input. The number of rows
/// is that of the weights, not of the micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Widen {
    /// Weights to dequantize.
    pub weights: Stack,
    /// Rows of the dequantized matrix.
    pub rows: u32,
}

impl Lower for Widen {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[]]
    }

    fn output(&self) -> Output {
        Output::Matrix { rows: self.rows }
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Matrix(self.weights.clone())]
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        match &site.weights[0][..] {
            [part] => vec![dequantize(part, site.output).0],
            // The product dequantizes each part right before that part's launch. All parts share one place.
            _ => Vec::new(),
        }
    }
}

/// Returns the launch that dequantizes one part of the weights to the place of the widen operator's output, and the
/// dequantized part.
fn dequantize(part: &Part, output: Tensor) -> (Call, Argument) {
    let ((buffer, offset, bytes), part_bytes) = (output.argument, widen::out_bytes(part.rows, part.columns));
    assert!(part_bytes <= bytes, "{part_bytes} bytes of weights for {bytes} in {buffer:?}");
    let matrix = (buffer, offset, part_bytes);
    let constants = vec![part.rows, output.width];
    let kernel = Kernel::Widen(part.tensor_type);
    (Call { kernel, arguments: vec![part.argument, matrix], constants }, matrix)
}

/// Bias vectors, concatenated in every row of the output. The products that share this output then add their
/// results to it. The operator has no input.
#[derive(Clone, Debug, PartialEq)]
pub struct Bias {
    /// Names of the bias tensors, in the order of their columns.
    pub weights: Vec<String>,
}

impl Lower for Bias {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[]]
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: self.weights.clone(), affine: Affine::IDENTITY }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(0, 4)
    }

    /// Returns a launch that also writes rows beyond the micro-batch, which are never read.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = row_copy([ElementType::F32; 2], [site.rows, site.output.width], 0);
        vec![site.call(Kernel::Copy, constants)]
    }
}
