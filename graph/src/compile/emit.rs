//! Emits the dispatches of a program: finds the buffers of each operator, and selects the variants of the kernels that
//! it launches.

use super::caches::Caches;
use super::storage::{Storage, capacity, output_bytes};
use crate::error::CompileError;
use crate::graph::OperatorGraph;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::ops::{Call, Part, Rows, Site, Tensor, Weight};
use crate::program::{ProgramStep, Slice, StageBuffer};
use crate::weight_buffer::{WeightBuffer, WeightContent};
use petgraph::stable_graph::NodeIndex;
use ragtag_hal::Caps;
use ragtag_kernels::params::{LOGIT_ROWS, ParamsShape, ROWS};
use ragtag_kernels::{TensorType, Variant};
use std::ops::Range;

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

    /// Returns the steps of a node.
    fn node(&mut self, index: NodeIndex) -> Result<Vec<ProgramStep>, CompileError> {
        let (node, site) = (self.graph.node(index), self.site(index)?);
        let calls = node.operator.lower().calls(&site);
        calls.into_iter().map(|call| self.dispatch(node.segment, site.rows, call)).collect()
    }

    /// Returns the place of a node in the program.
    fn site(&self, index: NodeIndex) -> Result<Site, CompileError> {
        let node = self.graph.node(index);
        let lower = node.operator.lower();
        let parts = |weight: &Weight| match self.parts(&weight.name())? {
            parts if parts.len() > 1 && !lower.reads_parts() => {
                let what = format!("{}, whose rows are no multiple of 32 values,", weight.name());
                let limit = self.caps.max_allocation_bytes.min(self.caps.max_binding_bytes);
                Err(CompileError::TooLarge { what, bytes: u64::MAX, limit })
            }
            parts => Ok(parts),
        };
        let of_ring = lower.cache().is_some_and(|of| self.caches.ring_of(of.layer).is_some());
        let of_ring = of_ring || lower.state().is_some();
        let params_offset = if of_ring { self.params.kv_ring_offset() } else { 0 };
        Ok(Site {
            capacities: self.params,
            params: (StageBuffer::Params, params_offset, self.params.bytes()),
            rows: capacity(node.rows, &self.params),
            count: match node.rows {
                Rows::Tokens => ROWS,
                Rows::Logits => LOGIT_ROWS,
            },
            inputs: [0, 1, 2].map(|number| self.graph.input(index, number).map(|input| self.tensor(input))),
            output: self.tensor(index),
            weights: lower.weights().iter().map(parts).collect::<Result<_, _>>()?,
            cache: lower.cache().map(|of| self.caches.of(of.layer)),
            state: lower.state().map(|of| self.caches.state(of)),
        })
    }

    pub(super) fn dispatch(
        &mut self,
        segment: usize,
        rows: u32,
        Call { kernel, arguments, constants }: Call,
    ) -> Result<ProgramStep, CompileError> {
        let variant = ragtag_kernels::select_for(kernel, self.caps, rows, &constants);
        let variant = variant.ok_or(CompileError::Kernel { kernel })?;
        let entry = self.variants.iter().position(|v| std::ptr::eq(*v, variant)).unwrap_or_else(|| {
            self.variants.push(variant);
            self.variants.len() - 1
        });
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

    /// Returns the output of a node.
    fn tensor(&self, index: NodeIndex) -> Tensor {
        let (node, (buffer, offset)) = (self.graph.node(index), self.storage.of(index));
        Tensor { argument: (buffer, offset, output_bytes(node, &self.params)), width: node.width }
    }

    /// Returns the parts of the weight in the buffers called `name`, in order.
    fn parts(&self, name: &str) -> Result<Vec<Part>, CompileError> {
        let part = |(index, weight): (usize, &WeightBuffer)| {
            let argument = (StageBuffer::Weight(index), 0, weight.bytes());
            let columns = (weight.bytes() / 4) as u32;
            match &weight.content {
                WeightContent::Matrix(matrix) => Part {
                    argument,
                    tensor_type: matrix.resident().tensor_type(),
                    first_row: matrix.first_row() as u32,
                    rows: matrix.resident().rows() as u32,
                    columns: matrix.resident().columns() as u32,
                },
                _ => Part { argument, tensor_type: TensorType::F32, first_row: 0, rows: 1, columns },
            }
        };
        let named = self.weights.iter().enumerate().filter(|(_, weight)| weight.name == name);
        let parts: Vec<_> = named.map(part).collect();
        if parts.is_empty() { Err(CompileError::Weight { name: name.into() }) } else { Ok(parts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::weight_buffers;
    use crate::ops::Work;
    use crate::{WireType, test_models};
    use ragtag_hal::{Access, KernelLanguage, QueueLayout};
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

    /// Calls `with` with an emitter of the model's program that has the weight buffers `weights`.
    fn emit<T>(model: &Model, weights: &[WeightBuffer], with: impl FnOnce(&mut Emitter<'_>) -> T) -> T {
        let lowering = Lowering {
            activations: Activations::F32,
            kv: KvType::F16,
            context: 64,
            sequences: 1,
            kv_blocks: None,
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
        with(&mut Emitter { model, graph, caps, lowering, caches, params, storage, weights, variants })
    }

    /// Returns the weight buffers of the whole model.
    fn weights(model: &Model) -> Vec<WeightBuffer> {
        let graph = model.graph(Activations::F32);
        weight_buffers(model, &graph, &graph.ordered(), |_| Layout::Rows16).unwrap()
    }

    /// Checks that a weight without a buffer is an error that names the weight, for each weight of a model.
    #[test]
    fn every_weight_needs_its_buffer() {
        for model in [test_models::qwen2(), test_models::starcoder2()] {
            let all = weights(&model);
            let steps = |weights: &[_]| emit(&model, weights, |e| e.steps(0..model.segment_count()));
            assert!(steps(&all).is_ok());
            for missing in 0..all.len() {
                let (mut others, wanted) = (all.clone(), &all[missing].name);
                others.remove(missing);
                let error = steps(&others).unwrap_err();
                assert!(matches!(&error, CompileError::Weight { name } if name == wanted), "{error}");
            }
        }
    }

    /// Checks that each launch of an operator writes to its output, and that an operator with costs for weights binds
    /// as many bytes of weights.
    #[test]
    fn launches_agree_with_outputs_and_costs() {
        for model in test_models::all() {
            emit(&model, &weights(&model), |emitter| {
                for index in emitter.graph.ordered() {
                    let (node, steps) = (emitter.graph.node(index), emitter.node(index).unwrap());
                    let (buffer, start, bytes) = emitter.tensor(index).argument;
                    let writes = |slice: &Slice| {
                        let is_within = (start..start + bytes).contains(&slice.offset);
                        slice.access != Access::Read && slice.buffer == buffer && is_within
                    };
                    assert!(steps.iter().all(|step| step.slices.iter().any(writes)), "{node:?}");
                    let slices = steps.iter().flat_map(|step| &step.slices);
                    let weights = slices.filter(|slice| matches!(slice.buffer, StageBuffer::Weight(_)));
                    let bound: u64 = weights.map(|slice| slice.bytes).sum();
                    let (weights, kv, width) = (model.weights(), KvType::F16, node.width.into());
                    let cost = node.operator.lower().cost(&Work { weights, kv, width, rows: 0 });
                    assert!([0, bound].contains(&cost.read_bytes), "{cost:?} for {bound} bytes of {node:?}");
                }
            });
        }
    }
}
