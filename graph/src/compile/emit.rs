//! Emits the dispatches of a program, including the arguments and constants that each kernel's ABI requires.

use super::buffers::{frequencies_name, layer_norm_pitch, weight_name};
use super::caches::Caches;
use super::storage::{Argument, Storage, capacity, output_bytes};
use crate::arch::{Rope, RopePairing};
use crate::error::CompileError;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::op::{Heads, Node, Operator, OperatorGraph, Rows, Scores};
use crate::passes::WIDENED;
use crate::program::{ProgramStep, Slice, StageBuffer, WeightBuffer, WeightContent};
use petgraph::stable_graph::NodeIndex;
use ragtag_hal::Caps;
use ragtag_kernels::attention::NO_WINDOW;
use ragtag_kernels::binary::Operation;
use ragtag_kernels::elements::{self, RANK};
use ragtag_kernels::params::{HEADER_WORDS, LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_kernels::{ElementType, Kernel, TensorType, Variant, layout, matmul, widen};
use std::ops::Range;

/// Kernel of a dispatch, the arguments that follow the parameter block, and the constants.
type Call = (Kernel, Vec<Argument>, Vec<u32>);

/// Rows of a weight matrix that one binding covers.
#[derive(Clone, Copy)]
struct MatrixPart {
    argument: Argument,
    tensor_type: TensorType,
    first_row: u32,
    rows: u32,
    columns: u32,
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
        let arriving = self.arriving(&segments)?;
        let nodes = self.graph.within(&segments);
        let steps: Result<Vec<_>, _> = nodes.into_iter().map(|node| self.node(node)).collect();
        let leaving = self.leaving(&segments)?;
        Ok(arriving.into_iter().chain(steps?.concat()).chain(leaving).collect())
    }

    /// Returns the steps of a node. If the node's weights are split into parts, each part has its own steps.
    fn node(&mut self, index: NodeIndex) -> Result<Vec<ProgramStep>, CompileError> {
        match &self.graph.node(index).operator {
            Operator::Embed { table } => self.embed(index, table),
            Operator::Lookup { table } => self.lookup(index, table),
            Operator::Widen { weights, .. } => match self.parts(&weights.name())?[..] {
                [part] => Ok(vec![self.widen(index, part)?]),
                // `product` dequantizes each part right before that part's dispatch. All parts share one place.
                _ => Ok(vec![]),
            },
            Operator::MatMul { .. } => self.product(index),
            _ => Ok(vec![self.step(index)?]),
        }
    }

    /// Emits one embedding lookup per part of the table. The lookup in the first part writes zeros for tokens
    /// whose rows are in other parts. Later lookups write only the rows of their own part.
    fn embed(&mut self, index: NodeIndex, table: &str) -> Result<Vec<ProgramStep>, CompileError> {
        let node = self.graph.node(index);
        let (rows, out) = (self.rows(node).0, self.output(index));
        if let Some(lookup) = self.graph.input(index, 0) {
            let pitch = layout::pitch_values(node.width);
            let mut constants = row_copy([ElementType::F32; 2], [rows, node.width], pitch);
            constants[2] = HEADER_WORDS as u32 * pitch;
            let arguments = vec![self.output(lookup), out];
            return Ok(vec![self.dispatch(node.segment, Kernel::Copy, rows, arguments, constants)?]);
        }
        let mut steps = Vec::new();
        for part in self.parts(table)? {
            let constants = vec![rows, part.rows, node.width, part.first_row];
            let kernel = Kernel::Embed(part.tensor_type);
            steps.push(self.dispatch(node.segment, kernel, rows, vec![part.argument, out], constants)?);
        }
        Ok(steps)
    }

    /// Emits the lookup of the words of the parameter block as token ids. The ids follow its header, so the first rows
    /// of the output are unused.
    fn lookup(&mut self, index: NodeIndex, table: &str) -> Result<Vec<ProgramStep>, CompileError> {
        let node = self.graph.node(index);
        let [part] = self.parts(table)?[..] else {
            let (what, bytes) = (format!("{table}, whose rows are no multiple of 32 values,"), u64::MAX);
            let limit = self.caps.max_allocation_bytes.min(self.caps.max_binding_bytes);
            return Err(CompileError::TooLarge { what, bytes, limit });
        };
        let (rows, f32) = (self.rows(node).0, elements::number(ElementType::F32));
        let words = rows + HEADER_WORDS as u32;
        let ids = (StageBuffer::Params, 0, self.params.bytes());
        let constants = vec![f32, f32, words, part.rows, layout::pitch_values(part.columns)];
        let arguments = vec![ids, part.argument, self.output(index)];
        Ok(vec![self.dispatch(node.segment, Kernel::GatherRows, rows, arguments, constants)?])
    }

    /// Emits the product of f32 rows and one part of the weights, whose rows have any length.
    fn gemm(
        &mut self,
        index: NodeIndex,
        part: &MatrixPart,
        y: Argument,
    ) -> Result<ProgramStep, CompileError> {
        let node = self.graph.node(index);
        let Operator::MatMul { accumulate, norm: None, gated: false, .. } = node.operator else {
            panic!("{} is not a plain product", node.operator.name());
        };
        let (rows, x) = (self.rows(node).0, self.graph.inputs(index)[0]);
        let MatrixPart { rows: n, columns: k, argument, .. } = *part;
        assert_eq!(self.graph.node(x).width, k, "columns of {:?}", node.operator);
        let pitch = layout::pitch_values(k);
        let beta = if accumulate { 1f32 } else { 0.0 };
        let shape = [rows, n, k, 0, 1, k, pitch, node.width];
        let constants = [&shape[..], &[1, 0, 0, 0], &[1f32, beta].map(f32::to_bits)].concat();
        let arguments = vec![self.output(x), argument, y];
        self.dispatch(node.segment, Kernel::Gemm(ElementType::F32), rows, arguments, constants)
    }

    /// Emits the dispatch that dequantizes one part of a product's weights to f16. The dispatch writes to the
    /// place of the widen node `index`.
    fn widen(&mut self, index: NodeIndex, part: MatrixPart) -> Result<ProgramStep, CompileError> {
        let node = self.graph.node(index);
        let arguments = vec![part.argument, self.widened(index, &part)];
        let (kernel, constants) = (Kernel::Widen(part.tensor_type), vec![part.rows, node.width]);
        self.dispatch(node.segment, kernel, self.rows(node).0, arguments, constants)
    }

    /// Returns the dequantized weights of a part in the output of the widen node `index`.
    fn widened(&self, index: NodeIndex, part: &MatrixPart) -> Argument {
        let (buffer, offset, bytes) = self.output(index);
        let part_bytes = widen::out_bytes(part.rows, part.columns);
        assert!(part_bytes <= bytes, "{part_bytes} bytes of weights for {:?}", self.graph.node(index));
        (buffer, offset, part_bytes)
    }

    /// Emits the dispatches of a product. Each part of the weights has its own dispatch, which computes the
    /// columns of that part.
    fn product(&mut self, index: NodeIndex) -> Result<Vec<ProgramStep>, CompileError> {
        let node = self.graph.node(index);
        let Operator::MatMul { weights, activations, column, accumulate, norm, gated } = &node.operator
        else {
            panic!("{} is not a product", node.operator.name());
        };
        let (rows, count) = self.rows(node);
        let x = self.output(self.graph.inputs(index)[0]);
        let parts = self.parts(&weights.name())?;
        assert!(!gated || parts.len() == 1, "gates of {} are in several parts", weights.name());
        let mut steps = Vec::new();
        for part in &parts {
            let (tensor_type, matrix) = match self.graph.input(index, WIDENED) {
                Some(widened) => {
                    if parts.len() > 1 {
                        steps.push(self.widen(widened, *part)?);
                    }
                    (TensorType::F16, self.widened(widened, part))
                }
                None => (part.tensor_type, part.argument),
            };
            let columns = if *gated { part.rows / 2 } else { part.rows };
            let y = self.columns(index, column + part.first_row, columns);
            if !matmul::takes_columns(part.columns) {
                steps.push(self.gemm(index, part, y)?);
                continue;
            }
            let mut arguments = vec![matrix, x, y];
            let mut constants =
                vec![rows, count, part.rows, part.columns, u32::from(*accumulate), node.width];
            if let Some(norm) = norm {
                arguments.push(self.weight(&norm.weight)?);
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
    fn step(&mut self, index: NodeIndex) -> Result<ProgramStep, CompileError> {
        let (node, p) = (self.graph.node(index), self.params);
        let (rows, count) = self.rows(node);
        let output = self.output(index);
        let inputs: Vec<Argument> = self.graph.inputs(index).into_iter().map(|i| self.output(i)).collect();
        let weight = weight_name(&node.operator).map(|name| self.weight(&name)).transpose()?;
        let to_output = || inputs.iter().copied().chain(weight).chain([output]).collect::<Vec<_>>();
        let f32 = elements::number(ElementType::F32);
        let (kernel, arguments, constants) = match &node.operator {
            Operator::Gather => (Kernel::Gather, to_output(), vec![p.rows, p.logit_rows, node.width]),
            Operator::RmsNorm { epsilon, output, .. } => {
                (Kernel::RmsNorm(*output), to_output(), vec![rows, count, node.width, epsilon.to_bits()])
            }
            Operator::Quantize { output } => {
                (Kernel::Quantize(*output), to_output(), vec![rows, count, node.width])
            }
            Operator::LayerNorm { epsilon, .. } => {
                let bytes = u64::from(node.width) * 4;
                let at = |offset: u64| weight.map(|(buffer, ..)| (buffer, offset, bytes));
                let both = at(0).into_iter().chain(at(layer_norm_pitch(node.width.into()) * 4));
                let arguments = inputs.iter().copied().chain(both).chain([output]).collect();
                (Kernel::LayerNorm, arguments, vec![f32, rows, node.width, epsilon.to_bits()])
            }
            Operator::Scale { factors } => {
                let constants = match factors[..] {
                    [_] => product([1, rows * node.width], [0, 0]),
                    _ => product([rows, node.width], [0, 1]),
                };
                (Kernel::Binary, to_output(), constants)
            }
            Operator::Unary { function } => {
                (Kernel::Unary, to_output(), vec![*function as u32, f32, rows * node.width])
            }
            // Rows beyond the micro-batch are never read.
            Operator::Bias { .. } => {
                (Kernel::Copy, to_output(), row_copy([ElementType::F32; 2], [rows, node.width], 0))
            }
            Operator::HeadNorm { heads, epsilon, form, .. } => {
                let heads = [heads.queries, heads.kv, heads.dimensions];
                let constants = [&[rows, count], &heads[..], &[epsilon.to_bits(), *form as u32]].concat();
                (Kernel::HeadNorm, [output].into_iter().chain(weight).collect(), constants)
            }
            Operator::RopeAppend { layer, heads, rope } => {
                let (frequencies, tables) = match weight {
                    Some(weight) => (weight, 1),
                    None => (self.sequence_frequencies(rope), p.sequences),
                };
                let cache = self.cache_constants(*layer, heads);
                let constants = [&cache[..], &rope_constants(rope), &[tables]].concat();
                let [keys, values] = self.caches.arguments(*layer);
                let arguments = vec![output, frequencies, keys, values];
                (Kernel::RopeAppend(self.lowering.kv), arguments, constants)
            }
            Operator::Attention { layer, heads, scores } => {
                let (arguments, constants) = self.attention(index, *layer, heads, scores);
                (Kernel::Attention(self.lowering.kv), arguments, constants)
            }
            Operator::AttentionPartial { layer, heads, scores, splits, appends } => {
                let (arguments, constants) = self.attention(index, *layer, heads, scores);
                self.partial((arguments, [constants, vec![*splits]].concat()), index, appends.as_ref())?
            }
            Operator::AttentionMerge { heads, splits, output } => {
                let constants = vec![rows, count, heads.queries, heads.dimensions, *splits];
                (Kernel::AttentionMerge(*output), to_output(), constants)
            }
            Operator::SiluMul { function, output } => {
                (Kernel::SiluMul(*output), to_output(), vec![rows, count, node.width, *function as u32])
            }
            Operator::Add => (Kernel::Add, inputs, vec![rows, count, node.width]),
            Operator::Embed { .. }
            | Operator::Lookup { .. }
            | Operator::Widen { .. }
            | Operator::MatMul { .. } => {
                unreachable!("{} has a step per part", node.operator.name())
            }
        };
        let mut step = self.dispatch(node.segment, kernel, rows, arguments, constants)?;
        if self.uses_ring(&node.operator) {
            assert_eq!(step.slices[0].buffer, StageBuffer::Params, "{kernel} reads no block table");
            step.slices[0].offset = self.params.kv_ring_offset();
        }
        Ok(step)
    }

    /// Returns the arguments and constants that all kernels of attention have.
    fn attention(
        &self,
        index: NodeIndex,
        layer: u32,
        heads: &Heads,
        scores: &Scores,
    ) -> (Vec<Argument>, Vec<u32>) {
        let qkv = self.graph.inputs(index)[0];
        let mut constants = self.cache_constants(layer, heads);
        constants.extend([scores.scale.to_bits(), self.graph.node(qkv).width]);
        constants.push(scores.window.unwrap_or(NO_WINDOW));
        // A cap of 0 stands for none.
        constants.push(scores.cap.unwrap_or(0.0).to_bits());
        let [keys, values] = self.caches.arguments(layer);
        (vec![self.columns(qkv, 0, heads.query_width()), keys, values, self.output(index)], constants)
    }

    /// Returns the call of split attention. If it `appends`, it first rotates its row and appends keys and values.
    fn partial(
        &self,
        (mut arguments, mut constants): (Vec<Argument>, Vec<u32>),
        index: NodeIndex,
        appends: Option<&Rope>,
    ) -> Result<Call, CompileError> {
        let Some(rope) = appends else {
            return Ok((Kernel::AttentionPartial(self.lowering.kv), arguments, constants));
        };
        constants.extend(rope_constants(rope));
        arguments[0] = self.output(self.graph.inputs(index)[0]);
        arguments.push(self.weight(&frequencies_name(rope))?);
        Ok((Kernel::AppendAttention(self.lowering.kv), arguments, constants))
    }

    /// Returns the RoPE frequencies of each sequence, which follow the parameter blocks.
    fn sequence_frequencies(&self, rope: &Rope) -> Argument {
        let offset = self.params.frequencies_offset(self.caches.ring.is_some());
        (StageBuffer::Params, offset, self.params.frequencies_bytes(rope.dimensions / 2))
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
        let entry = self.variants.iter().position(|v| std::ptr::eq(*v, variant)).unwrap_or_else(|| {
            self.variants.push(variant);
            self.variants.len() - 1
        });
        // All kernels depend on the micro-batch except those that dequantize weights, convert wire types,
        // write biases, look up rows of any length, or compute on all rows of a bucket.
        let is_general = matches!(
            kernel,
            Kernel::Widen(_)
                | Kernel::Copy
                | Kernel::LayerNorm
                | Kernel::Binary
                | Kernel::Unary
                | Kernel::Gemm(_)
                | Kernel::GatherRows
        );
        let params = (!is_general).then_some((StageBuffer::Params, 0, self.params.bytes()));
        let arguments: Vec<Argument> = params.into_iter().chain(arguments).collect();
        let (bindings, words) = (variant.abi.bindings, variant.abi.constants);
        assert_eq!(
            (arguments.len(), constants.len()),
            (bindings.len(), words),
            "arguments and constants of {kernel}"
        );
        let slice = |((buffer, offset, bytes), &access)| Slice { buffer, offset, bytes, access };
        let slices = arguments.into_iter().zip(bindings).map(slice).collect();
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
        let (buffer, offset) = self.storage.of(node);
        (buffer, offset, output_bytes(self.graph.node(node), &self.params))
    }

    /// Returns the byte range of `count` columns of a node's output, from the first row to the last.
    fn columns(&self, node: NodeIndex, first: u32, count: u32) -> Argument {
        let (buffer, offset, bytes) = self.output(node);
        let width = self.graph.node(node).width;
        assert!(first + count <= width, "columns {first} + {count} of {:?}", self.graph.node(node));
        (buffer, offset + u64::from(first) * 4, bytes - u64::from(width - count) * 4)
    }

    /// Returns the parts of the matrix in the buffers called `name`, in order.
    fn parts(&self, name: &str) -> Result<Vec<MatrixPart>, CompileError> {
        let part = |(index, weight): (usize, &WeightBuffer)| match &weight.content {
            WeightContent::Matrix(matrix) if weight.name == name => Some(MatrixPart {
                argument: (StageBuffer::Weight(index), 0, weight.bytes()),
                tensor_type: matrix.resident().tensor_type(),
                first_row: matrix.first_row() as u32,
                rows: matrix.resident().rows() as u32,
                columns: matrix.resident().columns() as u32,
            }),
            _ => None,
        };
        let parts: Vec<_> = self.weights.iter().enumerate().filter_map(part).collect();
        if parts.is_empty() { Err(CompileError::Weight { name: name.into() }) } else { Ok(parts) }
    }

    /// Returns the buffer called `name`.
    fn weight(&self, name: &str) -> Result<Argument, CompileError> {
        let index = self.weights.iter().position(|w| w.name == name);
        let index = index.ok_or_else(|| CompileError::Weight { name: name.into() })?;
        Ok((StageBuffer::Weight(index), 0, self.weights[index].bytes()))
    }
}

/// Returns the number of rotating dimensions per head, 1 if RoPE pairs halves and 0 otherwise, and the
/// magnitude.
fn rope_constants(rope: &Rope) -> [u32; 3] {
    [rope.dimensions, u32::from(rope.pairing == RopePairing::Halves), rope.magnitude.to_bits()]
}

/// Returns the constants for copying `rows` rows of `width` values. The starts of the source rows are `pitch`
/// values apart.
pub(super) fn row_copy(types: [ElementType; 2], [rows, width]: [u32; 2], pitch: u32) -> Vec<u32> {
    [&types.map(elements::number)[..], &[0], &walk(1, [rows, width]), &walk(0, [pitch, 1])].concat()
}

/// Returns the constants of the product of rows of values, and factors with the given strides.
fn product([rows, width]: [u32; 2], strides: [u32; 2]) -> Vec<u32> {
    let walks = [walk(1, [rows, width]), walk(0, [width, 1]), walk(0, strides)];
    let kind = elements::number(ElementType::F32);
    [&[Operation::Mul as u32, kind][..], &walks.concat()].concat()
}

/// Returns sizes or strides of a matrix. `outer` stands for the dimensions that a matrix lacks.
fn walk(outer: u32, matrix: [u32; 2]) -> [u32; RANK] {
    let mut dimensions = [outer; RANK];
    dimensions[RANK - 2..].copy_from_slice(&matrix);
    dimensions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::weight_buffers;
    use crate::{WireType, test_models};
    use ragtag_hal::{KernelLanguage, QueueLayout};
    use ragtag_kernels::{Activations, KvType, Layout};

    fn caps() -> Caps {
        Caps {
            languages: [KernelLanguage::Host].into(),
            features: Default::default(),
            queues: QueueLayout::Separate,
            records_programs: false,
            max_allocation_bytes: u64::MAX,
            max_binding_bytes: u64::MAX,
            binding_alignment_bytes: 64,
            copy_alignment_bytes: 1,
            parallel_units: 1,
            max_work_group_items: 1,
            local_memory_bytes: 0,
            clocks: Default::default(),
            gemm: None,
            sharing: Default::default(),
        }
    }

    /// Emits the model's program with the weight buffers `weights`.
    fn emit(model: &Model, weights: &[WeightBuffer]) -> Result<Vec<ProgramStep>, CompileError> {
        let lowering = Lowering {
            activations: Activations::F32,
            kv: KvType::F16,
            context: 64,
            sequences: 1,
            chunk: 2,
            logit_rows: 2,
            wire_type: WireType::F32,
        };
        let (graph, segments) = (model.graph(Activations::F32), 0..model.segment_count());
        let params = ParamsShape { rows: 2, logit_rows: 2, sequences: 1, table_blocks: 4 };
        let storage = Storage::plan(&graph, &graph.ordered(), &params);
        let caches = Caches::new(&graph, &segments, &lowering);
        let (graph, lowering, caches, caps) = (&graph, &lowering, &caches, &caps());
        let variants = Vec::new();
        Emitter { model, graph, caps, lowering, caches, params, storage, weights, variants }.steps(segments)
    }

    /// Checks that a weight without a buffer is an error that names the weight, for each weight of a model.
    #[test]
    fn every_weight_needs_its_buffer() {
        for model in [test_models::qwen2(), test_models::starcoder2()] {
            let graph = model.graph(Activations::F32);
            let all = weight_buffers(&model, &graph, &graph.ordered(), |_| Layout::Rows16).unwrap();
            assert!(emit(&model, &all).is_ok());
            for missing in 0..all.len() {
                let (mut others, wanted) = (all.clone(), &all[missing].name);
                others.remove(missing);
                let error = emit(&model, &others).unwrap_err();
                assert!(matches!(&error, CompileError::Weight { name } if name == wanted), "{error}");
            }
        }
    }
}
