//! Multi-head latent attention: products with weights of each head, and rows of queries, keys and values.

use super::kv::Heads;
use super::lower::{Call, Cost, Lower, Part, Shape, Site, Work};
use super::weight::{Affine, Weight};
use crate::arch::Latent;
use crate::stack::{Stack, StackedMatrix};
use ragtag_kernels::{Activations, Kernel, Layout};

/// Products of parts of the input, one for each head, and the weights of the heads.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadMatMul {
    /// Weights of all heads.
    pub weights: Stack,
    /// Number of heads.
    pub heads: u32,
    /// Number of weight rows per head.
    pub rows: u32,
    /// First column of the input in each head, whose columns follow each other without gaps.
    pub x_column: u32,
    /// First column of the output.
    pub column: u32,
    /// Columns of the output between the results of two heads.
    pub gap: u32,
}

impl Lower for HeadMatMul {
    fn shape(&self, _: Shape) -> Option<Shape> {
        None
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Matrix(self.weights.clone())]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let matrix = StackedMatrix::new(work.weights, &self.weights, |_| Layout::Rows16).expect("a layout");
        let (resident, columns) = (matrix.resident(), matrix.resident().columns() as u64);
        let flops = work.rows * 2 * u64::from(self.heads) * u64::from(self.rows) * columns;
        Cost { flops, read_bytes: resident.bytes(), ..Cost::default() }
    }

    /// Returns one launch per part of the weights. The kernel for experts computes the products: each head is an expert,
    /// which all rows choose.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let (x, heads) = (site.x(), self.heads);
        let call = |part: &Part| {
            // The kernel does not read a route.
            let arguments = vec![site.params, part.argument, x.argument, x.argument, site.output.argument];
            let counts = [site.rows, site.count, part.rows, part.columns, part.first_row];
            let sizes = [self.rows, self.rows, heads, heads, self.column, site.output.width];
            let fixed = [1, x.width / heads, self.x_column, self.gap];
            let constants = [&counts[..], &sizes, &fixed].concat();
            Call { kernel: Kernel::ExpertMatMul(part.tensor_type, Activations::F32), arguments, constants }
        };
        site.weights[0].iter().map(call).collect()
    }
}

/// Completes the first input, in which a [`HeadMatMul`] has written the dimensions of queries that do not rotate. The second
/// input has the queries before this product, and the third has the latent and the part of the key that rotates.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentRows {
    /// Heads of the output.
    pub heads: Heads,
    /// Sizes of the attention.
    pub latent: Latent,
    /// Name of the weights of the latent's norm.
    pub norm: String,
    /// Constant that is added to the mean square.
    pub epsilon: f32,
}

impl Lower for LatentRows {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0, 1, 2]]
    }

    fn overwrites(&self) -> Option<u8> {
        Some(0)
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: vec![self.norm.clone()], affine: Affine::IDENTITY }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let (flops, read_bytes) =
            (work.rows * 4 * u64::from(self.latent.rank), 4 * u64::from(self.latent.rank));
        Cost { flops, read_bytes, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let input = |number: usize| site.inputs[number].expect("an input").argument;
        let arguments = vec![site.params, input(1), input(2), site.weight(0), site.output.argument];
        let Latent { rank, plain, rotating, growth, .. } = self.latent;
        let (beta, period) = growth.map_or((0.0, 1), |growth| (growth.beta, growth.period));
        let sizes = [site.rows, site.count, self.heads.queries, plain, rotating, rank];
        let constants = [&sizes[..], &[self.epsilon.to_bits(), beta.to_bits(), period]].concat();
        vec![Call { kernel: Kernel::LatentRows, arguments, constants }]
    }
}
