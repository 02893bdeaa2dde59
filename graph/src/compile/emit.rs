//! Emits the dispatches of a program, including the arguments and constants that each kernel's ABI requires.

use super::crossing::row_copy;
use super::{
    Caches, CompileError, capacity, factors_name, frequencies_name, kv_layers, output_bytes, storage::Storage,
};
use crate::arch::{Rope, RopePairing};
use crate::error::ModelError;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::op::{Heads, Node, Operator, OperatorGraph, Rows};
use crate::passes::WIDENED;
use crate::program::{Place, ProgramStep, Slice, WeightBuffer, WeightContent};
use crate::stack::{Stack, StackedMatrix};
use petgraph::stable_graph::NodeIndex;
use ragtag_hal::Caps;
use ragtag_kernels::attention::NO_WINDOW;
use ragtag_kernels::binary::Operation;
use ragtag_kernels::elements::RANK;
use ragtag_kernels::params::{LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_kernels::{ElementType, Kernel, Layout, Resident, TensorType, Variant};
use std::ops::Range;

/// Place of a binding, the offset of its first byte, and its size in bytes.
type Argument = (Place, u64, u64);

/// Rows of a weight matrix that one binding covers.
#[derive(Clone, Copy)]
struct MatrixPart {
    argument: Argument,
    tensor_type: TensorType,
    first_row: u32,
    rows: u32,
}

pub(super) struct Emitter<'a> {
    pub(super) model: &'a Model,
    pub(super) graph: &'a OperatorGraph,
    pub(super) caps: &'a Caps,
    pub(super) lowering: &'a Lowering,
    pub(super) caches: &'a Caches,
    pub(super) params: ParamsShape,
    pub(super) storage: Storage,
    pub(super) weights: &'a [WeightBuffer],
    pub(super) variants: Vec<&'static Variant>,
}

impl Emitter<'_> {
    pub(super) fn steps(&mut self, segments: Range<usize>) -> Result<Vec<ProgramStep>, CompileError> {
        let layers: Vec<u32> = kv_layers(self.graph, &segments).into_iter().map(|(layer, _)| layer).collect();
        let nodes = self.graph.ordered();
        let inside = nodes.into_iter().filter(|&n| segments.contains(&self.graph.node(n).segment));
        let arriving = self.arriving(&segments)?;
        let steps: Result<Vec<_>, _> = inside.map(|node| self.node(node, &layers)).collect();
        let leaving = self.leaving(&segments)?;
        Ok(arriving.into_iter().chain(steps?.concat()).chain(leaving).collect())
    }

    /// Returns the steps of a node. If the node's weights are split into parts, each part has its own steps.
    fn node(&mut self, index: NodeIndex, layers: &[u32]) -> Result<Vec<ProgramStep>, CompileError> {
        match &self.graph.node(index).operator {
            Operator::Embed { table } => self.embed(index, table),
            // `product` dequantizes each part right before that part's dispatch. All parts share one place.
            Operator::Widen { weights, .. } if self.parts(&weights.name()).len() > 1 => Ok(vec![]),
            Operator::Widen { weights, .. } => {
                let part = self.parts(&weights.name())[0];
                Ok(vec![self.widen(index, part)?])
            }
            Operator::MatMul { weights, .. } => self.product(index, weights),
            _ => Ok(vec![self.step(index, layers)?]),
        }
    }

    /// Emits one embedding lookup per part of the table. The lookup in the first part writes zeros for tokens
    /// whose rows are in other parts. Later lookups write only the rows of their own part.
    fn embed(&mut self, index: NodeIndex, table: &str) -> Result<Vec<ProgramStep>, CompileError> {
        let node = self.graph.node(index);
        let (rows, out) = (self.rows(node).0, self.output(index));
        let mut steps = Vec::new();
        for part in self.parts(table) {
            let constants = vec![rows, part.rows, node.width, part.first_row];
            let kernel = Kernel::Embed(part.tensor_type);
            steps.push(self.dispatch(node.segment, kernel, rows, vec![part.argument, out], constants)?);
        }
        Ok(steps)
    }

    /// Emits the dispatch that dequantizes one part of a product's weights to f16. The dispatch writes to the
    /// place of the widen node `index`.
    fn widen(&mut self, index: NodeIndex, part: MatrixPart) -> Result<ProgramStep, CompileError> {
        let node = self.graph.node(index);
        let (place, offset, _) = self.output(index);
        let bytes = ragtag_kernels::widen::out_bytes(part.rows, node.width);
        let arguments = vec![part.argument, (place, offset, bytes)];
        let rows = self.rows(node).0;
        self.dispatch(
            node.segment,
            Kernel::Widen(part.tensor_type),
            rows,
            arguments,
            vec![part.rows, node.width],
        )
    }

    /// Emits the dispatches of a product. Each part of the weights has its own dispatch, which computes the
    /// columns of that part.
    fn product(&mut self, index: NodeIndex, weights: &Stack) -> Result<Vec<ProgramStep>, CompileError> {
        let node = self.graph.node(index);
        let Operator::MatMul { activations, column, accumulate, norm, gated, .. } = &node.operator else {
            return Ok(vec![]);
        };
        let (rows, count) = self.rows(node);
        let x = self.output(self.graph.inputs(index)[0]);
        let (k, parts) = (self.matrix(weights)?.columns() as u32, self.parts(&weights.name()));
        let mut steps = Vec::new();
        for part in &parts {
            let (tensor_type, matrix) = match self.graph.input(index, WIDENED) {
                Some(widened) => {
                    if parts.len() > 1 {
                        steps.push(self.widen(widened, *part)?);
                    }
                    let (place, offset, _) = self.output(widened);
                    (TensorType::F16, (place, offset, ragtag_kernels::widen::out_bytes(part.rows, k)))
                }
                None => (part.tensor_type, part.argument),
            };
            let columns = if *gated { part.rows / 2 } else { part.rows };
            let y = self.columns(index, column + part.first_row, columns);
            let mut arguments = vec![matrix, x, y];
            let mut constants = vec![rows, count, part.rows, k, u32::from(*accumulate), node.width];
            if let Some(norm) = norm {
                arguments.push(self.weight(&norm.weight));
                constants.push(norm.epsilon.to_bits());
            }
            let kernel = match norm {
                None => Kernel::MatMul(tensor_type, *activations),
                Some(_) if *gated => Kernel::GatedMatMul(tensor_type),
                Some(_) => Kernel::NormMatMul(tensor_type),
            };
            steps.push(self.dispatch(node.segment, kernel, rows, arguments, constants)?);
        }
        Ok(steps)
    }

    /// Emits the dispatch of a node whose weights are not split.
    fn step(&mut self, index: NodeIndex, layers: &[u32]) -> Result<ProgramStep, CompileError> {
        let node = self.graph.node(index);
        let inputs: Vec<Argument> = self.graph.inputs(index).into_iter().map(|i| self.output(i)).collect();
        let (rows, count) = self.rows(node);
        let p = self.params;
        let cache = |layer: u32, heads: &Heads| {
            let first = 2 * layers.iter().position(|&l| l == layer).unwrap_or(0);
            let [keys, values] = self.caches.bytes(layer, heads);
            [(Place::Kv(first), 0, keys), (Place::Kv(first + 1), 0, values)]
        };
        let (kernel, arguments, constants) = match &node.operator {
            Operator::Gather => {
                (Kernel::Gather, vec![inputs[0], self.output(index)], vec![p.rows, p.logit_rows, node.width])
            }
            Operator::RmsNorm { weight, epsilon, output, .. } => {
                let arguments = vec![inputs[0], self.weight(weight), self.output(index)];
                (Kernel::RmsNorm(*output), arguments, vec![rows, count, node.width, epsilon.to_bits()])
            }
            Operator::Quantize { output } => (
                Kernel::Quantize(*output),
                vec![inputs[0], self.output(index)],
                vec![rows, count, node.width],
            ),
            Operator::LayerNorm { weights, epsilon, .. } => {
                let (place, _, _) = self.weight(&weights.join(" + "));
                let (start, bytes) =
                    (super::layer_norm_pitch(node.width.into()) * 4, u64::from(node.width) * 4);
                let arguments = vec![inputs[0], (place, 0, bytes), (place, start, bytes), self.output(index)];
                let kind = ragtag_kernels::elements::number(ElementType::F32);
                (Kernel::LayerNorm, arguments, vec![kind, rows, node.width, epsilon.to_bits()])
            }
            Operator::Scale { factors } => {
                let arguments = vec![inputs[0], self.weight(&factors_name(factors)), self.output(index)];
                let constants = match factors[..] {
                    [_] => product([1, rows * node.width], [0, 0]),
                    _ => product([rows, node.width], [0, 1]),
                };
                (Kernel::Binary, arguments, constants)
            }
            Operator::Unary { function } => {
                let kind = ragtag_kernels::elements::number(ElementType::F32);
                let constants = vec![*function as u32, kind, rows * node.width];
                (Kernel::Unary, vec![inputs[0], self.output(index)], constants)
            }
            Operator::Bias { weights } => {
                let arguments = vec![self.weight(&weights.join(" + ")), self.output(index)];
                // Rows beyond the micro-batch are never read.
                (Kernel::Copy, arguments, row_copy([ElementType::F32; 2], [rows, node.width], 0))
            }
            Operator::HeadNorm { heads, weights, epsilon, form, .. } => {
                let arguments = vec![self.output(index), self.weight(&weights.join(" + "))];
                let heads = [heads.queries, heads.kv, heads.dimensions];
                let constants = [&[rows, count], &heads[..], &[epsilon.to_bits(), *form as u32]].concat();
                (Kernel::HeadNorm, arguments, constants)
            }
            Operator::RopeAppend { layer, heads, rope } => {
                let mut constants = self.cache_constants(*layer, heads);
                constants.extend(rope_constants(rope));
                let [keys, values] = cache(*layer, heads);
                let frequencies = self.weight(&frequencies_name(rope));
                let arguments = vec![self.output(index), frequencies, keys, values];
                (Kernel::RopeAppend(self.lowering.kv), arguments, constants)
            }
            Operator::Attention { layer, heads, scores }
            | Operator::AttentionPartial { layer, heads, scores, .. } => {
                let qkv = self.graph.inputs(index)[0];
                let mut constants = self.cache_constants(*layer, heads);
                constants.extend([scores.scale.to_bits(), self.graph.node(qkv).width]);
                constants.push(scores.window.unwrap_or(NO_WINDOW));
                constants.push(scores.cap.unwrap_or(0.0).to_bits());
                let q = self.columns(qkv, 0, heads.query_width());
                let [keys, values] = cache(*layer, heads);
                let mut arguments = vec![q, keys, values, self.output(index)];
                let kernel = match &node.operator {
                    Operator::AttentionPartial { splits, appends: Some(rope), .. } => {
                        constants.push(*splits);
                        constants.extend(rope_constants(rope));
                        arguments[0] = self.output(qkv);
                        arguments.push(self.weight(&frequencies_name(rope)));
                        Kernel::AppendAttention(self.lowering.kv)
                    }
                    Operator::AttentionPartial { splits, .. } => {
                        constants.push(*splits);
                        Kernel::AttentionPartial(self.lowering.kv)
                    }
                    _ => Kernel::Attention(self.lowering.kv),
                };
                (kernel, arguments, constants)
            }
            Operator::AttentionMerge { heads, splits, output } => {
                let constants = vec![rows, count, heads.queries, heads.dimensions, *splits];
                (Kernel::AttentionMerge(*output), vec![inputs[0], self.output(index)], constants)
            }
            Operator::SiluMul { function, output } => {
                let arguments = vec![inputs[0], self.output(index)];
                (Kernel::SiluMul(*output), arguments, vec![rows, count, node.width, *function as u32])
            }
            Operator::Add => (Kernel::Add, vec![inputs[0], inputs[1]], vec![rows, count, node.width]),
            Operator::Embed { .. } | Operator::Widen { .. } | Operator::MatMul { .. } => {
                return Err(CompileError::Model(ModelError::Unsupported {
                    what: "a product in a single step".into(),
                }));
            }
        };
        let segment = node.segment;
        let mut step = self.dispatch(segment, kernel, rows, arguments, constants)?;
        if self.uses_ring(&node.operator) {
            step.slices[0].offset = self.params.kv_ring_offset();
        }
        Ok(step)
    }

    /// Returns whether an operator accesses a KV cache whose blocks are those of KV rings.
    fn uses_ring(&self, operator: &Operator) -> bool {
        match operator {
            Operator::RopeAppend { layer, .. }
            | Operator::Attention { layer, .. }
            | Operator::AttentionPartial { layer, .. } => self.caches.ring_of(*layer).is_some(),
            _ => false,
        }
    }

    pub(super) fn dispatch(
        &mut self,
        segment: usize,
        kernel: Kernel,
        rows: u32,
        arguments: Vec<Argument>,
        constants: Vec<u32>,
    ) -> Result<ProgramStep, CompileError> {
        let variant = ragtag_kernels::select(kernel, self.caps, rows);
        let variant = variant.ok_or(CompileError::Kernel { kernel })?;
        let entry = match self.variants.iter().position(|v| std::ptr::eq(*v, variant)) {
            Some(entry) => entry,
            None => {
                self.variants.push(variant);
                self.variants.len() - 1
            }
        };
        // All kernels depend on the micro-batch except those that dequantize weights, convert wire types,
        // write biases, or compute on all rows of a bucket.
        let is_general = matches!(kernel, Kernel::Copy | Kernel::LayerNorm | Kernel::Binary | Kernel::Unary);
        let params = (!matches!(kernel, Kernel::Widen(_)) && !is_general).then_some((
            Place::Params,
            0,
            self.params.bytes(),
        ));
        let slices = params
            .into_iter()
            .chain(arguments)
            .zip(variant.abi.bindings)
            .map(|((place, offset, bytes), &access)| Slice { place, offset, bytes, access })
            .collect();
        let grid = variant.grid(&constants, self.caps);
        Ok(ProgramStep { segment, entry: entry as u32, slices, constants, grid })
    }

    /// Returns the maximum number of rows in a node's output, and the parameter word that holds the actual
    /// number.
    fn rows(&self, node: &Node) -> (u32, u32) {
        let count = match node.rows {
            Rows::Tokens => ROWS,
            Rows::Logits => LOGIT_ROWS,
        };
        (capacity(node.rows, &self.params), count)
    }

    /// Returns the leading constants of kernels that access the KV cache: capacities of the parameter block,
    /// head counts, elements per head and number of cache blocks.
    fn cache_constants(&self, layer: u32, heads: &Heads) -> Vec<u32> {
        let p = self.params;
        let mut constants = vec![p.rows, p.sequences, p.table_blocks, p.logit_rows];
        constants.extend([heads.queries, heads.kv, heads.dimensions, self.caches.blocks(layer)]);
        constants
    }

    fn output(&self, node: NodeIndex) -> Argument {
        let (place, offset) = self.storage.of(node);
        (place, offset, output_bytes(self.graph.node(node), &self.params))
    }

    /// Returns the byte range of `count` columns of a node's output, from the first row to the last.
    fn columns(&self, node: NodeIndex, first: u32, count: u32) -> Argument {
        let (place, offset, bytes) = self.output(node);
        let left_out = u64::from(self.graph.node(node).width.saturating_sub(count)) * 4;
        (place, offset + u64::from(first) * 4, bytes.saturating_sub(left_out))
    }

    /// Returns the type and shape of a product's weights.
    fn matrix(&self, weights: &Stack) -> Result<Resident, CompileError> {
        Ok(*StackedMatrix::new(self.model.weights(), weights, |_| Layout::Rows16)?.resident())
    }

    /// Returns the parts of the matrix in the buffer called `name`, in order.
    fn parts(&self, name: &str) -> Vec<MatrixPart> {
        let part = |(index, weight): (usize, &WeightBuffer)| match &weight.content {
            WeightContent::Matrix(matrix) if weight.name == name => Some(MatrixPart {
                argument: (Place::Weight(index), 0, weight.bytes()),
                tensor_type: matrix.resident().tensor_type(),
                first_row: matrix.first_row() as u32,
                rows: matrix.resident().rows() as u32,
            }),
            _ => None,
        };
        self.weights.iter().enumerate().filter_map(part).collect()
    }

    fn weight(&self, name: &str) -> Argument {
        let index = self.weights.iter().position(|w| w.name == name).unwrap_or(0);
        (Place::Weight(index), 0, self.weights[index].bytes())
    }
}

/// Returns the number of rotating dimensions per head, 1 if RoPE pairs halves and 0 otherwise, and the
/// magnitude.
fn rope_constants(rope: &Rope) -> [u32; 3] {
    [rope.dimensions, u32::from(rope.pairing == RopePairing::Halves), rope.magnitude.to_bits()]
}

/// Returns the constants of the product of rows of values, and factors with the given strides.
fn product([rows, width]: [u32; 2], strides: [u32; 2]) -> Vec<u32> {
    let walk = |outer: u32, [row, column]: [u32; 2]| {
        let mut dimensions = [outer; RANK];
        dimensions[RANK - 2..].copy_from_slice(&[row, column]);
        dimensions
    };
    let kind = ragtag_kernels::elements::number(ElementType::F32);
    let walks = [walk(1, [rows, width]), walk(0, [width, 1]), walk(0, strides)];
    [&[Operation::Mul as u32, kind][..], &walks.concat()].concat()
}
