//! Norms.

use super::elementwise::f32_number;
use super::kv::Heads;
use super::lower::{Call, Cost, Lower, Output, Site, Work};
use super::weight::{Affine, Weight, pair_pitch};
use crate::arch::Growth;
use ragtag_kernels::head_norm::Form;
use ragtag_kernels::{Activations, Kernel};

/// RMS norm of the input, multiplied by a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Name of the norm's weight tensor.
    pub weight: String,
    /// Constant that is added to the mean square.
    pub epsilon: f32,
    /// Change of the weights.
    pub affine: Affine,
    /// Type of the output.
    pub output: Activations,
}

impl Lower for RmsNorm {
    fn output(&self) -> Output {
        Output::Rows(self.output)
    }

    fn output_type(&mut self) -> Option<&mut Activations> {
        Some(&mut self.output)
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Vector { tensors: vec![self.weight.clone()], affine: self.affine }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(4, 4)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = [site.output.width, self.epsilon.to_bits()];
        vec![site.row_call(Kernel::RmsNorm(self.output), &constants)]
    }
}

/// Layer norm of the input, multiplied by a weight, plus a bias.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Name of the tensor of the weight, and of the bias if there is one.
    pub weights: Vec<String>,
    /// Constant that is added to the variance.
    pub epsilon: f32,
    /// Change of the weights. The biases remain as they are.
    pub affine: Affine,
}

impl Lower for LayerNorm {
    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Pair { tensors: self.weights.clone(), affine: self.affine }]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        work.columns(7, 8)
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (width, (buffer, ..)) = (site.output.width, site.weight(0));
        let at = |value: u64| (buffer, value * 4, u64::from(width) * 4);
        let arguments = vec![site.x().argument, at(0), at(pair_pitch(width.into())), site.output.argument];
        let constants = vec![f32_number(), site.rows, width, self.epsilon.to_bits()];
        vec![Call { kernel: Kernel::LayerNorm, arguments, constants }]
    }
}

/// Norm of each query head and each key head, multiplied by weights, and in one form of each value head. Overwrites the
/// input, which holds queries, keys and values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// Heads of the input.
    pub heads: Heads,
    /// Names of the weight tensors for queries and for keys, in this order. Without names, all weights are 1.
    pub weights: Option<[String; 2]>,
    /// Constant that is added to the mean square, or to the variance.
    pub epsilon: f32,
    /// Number that is added to the weights.
    pub offset: f32,
    /// Form of the norm.
    pub form: Form,
}

impl Lower for HeadNorm {
    fn overwrites(&self) -> Option<u8> {
        Some(0)
    }

    fn weights(&self) -> Vec<Weight> {
        let affine = Affine { offset: self.offset, ..Affine::IDENTITY };
        let ones = Weight::Factors(vec![(1.0, self.heads.dimensions); 2]);
        let vector = |names: &[String; 2]| Weight::Vector { tensors: names.to_vec(), affine };
        vec![self.weights.as_ref().map_or(ones, vector)]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let of_values = if self.form == Form::Values { self.heads.kv_width() } else { 0 };
        let all = u64::from(self.heads.query_width() + self.heads.kv_width() + of_values);
        let flops = work.rows * if self.form == Form::Centred { 7 } else { 4 } * all;
        let of_head = 8 * u64::from(self.heads.dimensions);
        let is_shared = matches!(self.form, Form::Heads | Form::Values);
        let read_bytes = if is_shared { of_head } else { 4 * all };
        Cost { flops, read_bytes, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (Heads { queries, kv, dimensions }, form) = (self.heads, self.form as u32);
        let arguments = vec![site.params, site.output.argument, site.weight(0)];
        let constants = vec![site.rows, site.count, queries, kv, dimensions, self.epsilon.to_bits(), form, 0];
        vec![Call { kernel: Kernel::HeadNorm, arguments, constants }]
    }
}

/// Growth of the queries with their position. Overwrites the input, which holds queries, keys and values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Heads of the input.
    pub heads: Heads,
    /// Growth, in which the number of positions up to the row's own stands for its position.
    pub growth: Growth,
}

impl Lower for QueryGrowth {
    fn overwrites(&self) -> Option<u8> {
        Some(0)
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        Cost { flops: work.rows * u64::from(self.heads.query_width()), ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let (Heads { queries, kv, dimensions }, Growth { beta, period }) = (self.heads, self.growth);
        // The kernel reads no weights.
        let arguments = vec![site.params, site.output.argument, site.params];
        let sizes = [site.rows, site.count, queries, kv, dimensions];
        let constants = [&sizes[..], &[beta.to_bits(), Form::Growth as u32, period]].concat();
        vec![Call { kernel: Kernel::HeadNorm, arguments, constants }]
    }
}
