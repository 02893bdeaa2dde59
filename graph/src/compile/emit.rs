//! Writes the dispatches of a program: for each node its kernel's arguments and constants, as the kernel's ABI has them.

use super::{CompileError, ROPE_FREQUENCIES, capacity, kv_layers, output_bytes, storage::Storage};
use crate::model::{Lowering, Model};
use crate::op::{Node, Operator, OperatorGraph, RopePairing, Rows};
use crate::passes::WIDENED;
use crate::program::{Place, Slice, Step, WeightBuffer};
use crate::stack::{Stack, StackedMatrix};
use petgraph::stable_graph::NodeIndex;
use ragtag_hal::Caps;
use ragtag_kernels::params::{LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_kernels::{Kernel, Layout, Resident, TensorType, Variant};
use std::ops::Range;

/// A binding before its access is known: place, first byte, number of bytes.
type Argument = (Place, u64, u64);

pub(super) struct Emitter<'a> {
    pub(super) model: &'a Model,
    pub(super) graph: &'a OperatorGraph,
    pub(super) caps: &'a Caps,
    pub(super) lowering: &'a Lowering,
    pub(super) params: ParamsShape,
    pub(super) storage: Storage,
    pub(super) weights: &'a [WeightBuffer],
    pub(super) variants: Vec<&'static Variant>,
}

impl Emitter<'_> {
    pub(super) fn steps(&mut self, segments: Range<usize>) -> Result<Vec<Step>, CompileError> {
        let layers = kv_layers(self.graph, &segments);
        let nodes = self.graph.ordered();
        let inside = nodes.into_iter().filter(|&n| segments.contains(&self.graph.node(n).segment));
        inside.map(|node| self.step(node, &layers)).collect()
    }

    fn step(&mut self, index: NodeIndex, layers: &[u32]) -> Result<Step, CompileError> {
        let node = self.graph.node(index);
        let h = self.model.hyperparameters();
        let inputs: Vec<Argument> = self.graph.inputs(index).into_iter().map(|i| self.output(i)).collect();
        let (rows, count) = self.rows(node);
        let p = self.params;
        let cache = |layer: u32| {
            let first = 2 * layers.iter().position(|&l| l == layer).unwrap_or(0);
            let bytes = self.lowering.kv.bytes()
                * u64::from(self.lowering.cache_blocks())
                * ragtag_kernels::params::BLOCK_TOKENS as u64
                * u64::from(h.kv_heads * h.head_dimensions);
            [(Place::Kv(first), 0, bytes), (Place::Kv(first + 1), 0, bytes)]
        };
        let (kernel, arguments, constants) = match &node.operator {
            Operator::Embed { table } => {
                let weight = self.model.tensor(table)?;
                let constants = vec![rows, weight.rows() as u32, node.width];
                (Kernel::Embed(weight.tensor_type), vec![self.weight(table), self.output(index)], constants)
            }
            Operator::Gather => {
                (Kernel::Gather, vec![inputs[0], self.output(index)], vec![p.rows, p.logit_rows, node.width])
            }
            Operator::RmsNorm { weight, epsilon, output } => {
                let arguments = vec![inputs[0], self.weight(weight), self.output(index)];
                (Kernel::RmsNorm(*output), arguments, vec![rows, count, node.width, epsilon.to_bits()])
            }
            Operator::Quantize { output } => (
                Kernel::Quantize(*output),
                vec![inputs[0], self.output(index)],
                vec![rows, count, node.width],
            ),
            Operator::Widen { weights, rows: n } => {
                let tensor_type = self.matrix(weights)?.tensor_type();
                let arguments = vec![self.weight(&weights.name()), self.output(index)];
                (Kernel::Widen(tensor_type), arguments, vec![*n, node.width])
            }
            Operator::MatMul { weights, activations, column, accumulate } => {
                let matrix = self.matrix(weights)?;
                let (n, k) = (matrix.rows() as u32, matrix.columns() as u32);
                let constants = vec![rows, count, n, k, u32::from(*accumulate), node.width];
                let y = self.columns(index, *column, n);
                let (tensor_type, matrix) = match self.graph.input(index, WIDENED) {
                    Some(widened) => (TensorType::F16, self.output(widened)),
                    None => (matrix.tensor_type(), self.weight(&weights.name())),
                };
                (Kernel::MatMul(tensor_type, *activations), vec![matrix, inputs[0], y], constants)
            }
            Operator::RopeAppend { layer, pairing } => {
                let halves = u32::from(*pairing == RopePairing::Halves);
                let mut constants = self.cache_constants();
                constants.extend([h.rope_dimensions, halves]);
                let [keys, values] = cache(*layer);
                let arguments = vec![self.output(index), self.weight(ROPE_FREQUENCIES), keys, values];
                (Kernel::RopeAppend(self.lowering.kv), arguments, constants)
            }
            Operator::Attention { layer } | Operator::AttentionPartial { layer, .. } => {
                let scale = 1.0 / (h.head_dimensions as f32).sqrt();
                let qkv = self.graph.inputs(index)[0];
                let mut constants = self.cache_constants();
                constants.extend([scale.to_bits(), self.graph.node(qkv).width]);
                let kernel = match node.operator {
                    Operator::AttentionPartial { splits, .. } => {
                        constants.push(splits);
                        Kernel::AttentionPartial(self.lowering.kv)
                    }
                    _ => Kernel::Attention(self.lowering.kv),
                };
                let q = self.columns(qkv, 0, h.heads * h.head_dimensions);
                let [keys, values] = cache(*layer);
                (kernel, vec![q, keys, values, self.output(index)], constants)
            }
            Operator::AttentionMerge { splits, output } => {
                let constants = vec![rows, count, h.heads, h.head_dimensions, *splits];
                (Kernel::AttentionMerge(*output), vec![inputs[0], self.output(index)], constants)
            }
            Operator::SiluMul { output } => {
                let arguments = vec![inputs[0], self.output(index)];
                (Kernel::SiluMul(*output), arguments, vec![rows, count, node.width])
            }
            Operator::Add => (Kernel::Add, vec![inputs[0], inputs[1]], vec![rows, count, node.width]),
        };
        let segment = node.segment;
        self.dispatch(segment, kernel, rows, arguments, constants)
    }

    fn dispatch(
        &mut self,
        segment: usize,
        kernel: Kernel,
        rows: u32,
        arguments: Vec<Argument>,
        constants: Vec<u32>,
    ) -> Result<Step, CompileError> {
        let variant = ragtag_kernels::select(kernel, self.caps, rows);
        let variant = variant.ok_or(CompileError::Kernel { kernel })?;
        let entry = match self.variants.iter().position(|v| std::ptr::eq(*v, variant)) {
            Some(entry) => entry,
            None => {
                self.variants.push(variant);
                self.variants.len() - 1
            }
        };
        // Only the widening of weights knows nothing of the micro-batch.
        let params = (!matches!(kernel, Kernel::Widen(_))).then_some((Place::Params, 0, self.params.bytes()));
        let slices = params
            .into_iter()
            .chain(arguments)
            .zip(variant.abi.bindings)
            .map(|((place, offset, bytes), &access)| Slice { place, offset, bytes, access })
            .collect();
        let grid = (variant.grid)(&constants);
        Ok(Step { segment, entry: entry as u32, slices, constants, grid })
    }

    /// Capacity of a node's rows, and the parameter word that counts them.
    fn rows(&self, node: &Node) -> (u32, u32) {
        let count = match node.rows {
            Rows::Tokens => ROWS,
            Rows::Logits => LOGIT_ROWS,
        };
        (capacity(node.rows, &self.params), count)
    }

    /// What kernels that know the cache start with: the parameters' capacities, heads, blocks.
    fn cache_constants(&self) -> Vec<u32> {
        let (p, h) = (self.params, self.model.hyperparameters());
        let mut constants = vec![p.rows, p.sequences, p.table_blocks, p.logit_rows];
        constants.extend([h.heads, h.kv_heads, h.head_dimensions, self.lowering.cache_blocks()]);
        constants
    }

    fn output(&self, node: NodeIndex) -> Argument {
        let (place, offset) = self.storage.of(node);
        (place, offset, output_bytes(self.graph.node(node), &self.params))
    }

    /// Columns of a node's output: from the first row's to the last row's.
    fn columns(&self, node: NodeIndex, first: u32, count: u32) -> Argument {
        let (place, offset, bytes) = self.output(node);
        let left_out = u64::from(self.graph.node(node).width.saturating_sub(count)) * 4;
        (place, offset + u64::from(first) * 4, bytes.saturating_sub(left_out))
    }

    /// Type and shape of a product's weights.
    fn matrix(&self, weights: &Stack) -> Result<Resident, CompileError> {
        Ok(*StackedMatrix::new(self.model.weights(), weights, |_| Layout::Rows16)?.resident())
    }

    fn weight(&self, name: &str) -> Argument {
        let index = self.weights.iter().position(|w| w.name == name).unwrap_or(0);
        (Place::Weight(index), 0, self.weights[index].bytes())
    }
}
