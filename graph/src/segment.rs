//! Segments: the smallest units of placement, and their costs in bytes and floating-point operations.

use crate::compile;
use crate::error::ModelError;
use crate::granularity::{Granularity, SegmentKind};
use crate::graph::OperatorGraph;
use crate::lowering::Lowering;
use crate::model::{Model, basic_form};
use crate::ops::{Cost, Work};
use crate::weight_buffer::WeightBuffer;
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::{Activations, Kernel, Layout, TensorType};
use serde::{Deserialize, Serialize};

/// One segment and its costs. A row is a token of the micro-batch. A position is a token that a row attends
/// to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Name of the segment, such as `embedding`, `block 0`, `block 0 attention`, `block 0 ffn` or `head`.
    pub name: String,
    /// Weight buffers that the segment needs. If two segments on a device share a buffer, as tied embeddings
    /// do, the device stores the buffer once.
    pub tensors: Vec<SegmentTensor>,
    /// Floating-point operations per row, or per logit row for the head.
    pub flops_per_row: u64,
    /// Floating-point operations per row and attended position.
    pub flops_per_row_position: u64,
    /// Bytes of weights that are read for each micro-batch, besides those for each row. This is 0 for the
    /// embedding, which reads one row per token.
    pub read_bytes: u64,
    /// Weights of experts. The bytes that a micro-batch reads of them depend on its rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertReads>,
    /// Bytes read per row, excluding activations that stay within the segment.
    pub read_bytes_per_row: u64,
    /// Bytes of keys and values per position of a sequence. For each row, attention reads this number of
    /// bytes per position.
    pub kv_bytes_per_position: u64,
    /// The part of these bytes that values take.
    pub value_bytes_per_position: u64,
    /// Number of positions to which a row attends, including its own. `None` stands for all positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Bytes of the two states of a sequence, if the segment is recurrent.
    #[serde(skip_serializing_if = "is_stateless")]
    pub state_bytes: [u64; 2],
    /// Scratch bytes for the largest micro-batch. A stage needs the maximum over its segments, not the sum.
    pub scratch_bytes: u64,
    /// Scratch bytes for the largest micro-batch on a device that uses f16 activations and dequantized
    /// weights.
    pub wide_scratch_bytes: u64,
    /// Size in bytes of the largest tensor in the largest micro-batch. A kernel must be able to bind this
    /// tensor as one range.
    pub tensor_bytes: u64,
}

// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_stateless(state_bytes: &[u64; 2]) -> bool {
    *state_bytes == [0; 2]
}

/// Weights of experts that a segment reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertReads {
    /// Bytes of all experts.
    pub bytes: u64,
    /// Number of experts.
    pub count: u32,
    /// Number of experts that each row uses.
    pub used: u32,
}

impl ExpertReads {
    /// Returns the expected number of bytes of the distinct experts that `rows` rows use, if they choose evenly.
    pub fn bytes_of(&self, rows: u32) -> f64 {
        let unused = 1.0 - f64::from(self.used) / f64::from(self.count.max(1));
        self.bytes as f64 * (1.0 - unused.max(0.0).powf(f64::from(rows)))
    }

    /// Returns the weights of two operators of a mixture.
    pub(crate) fn sum(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(Self { bytes: a.bytes + b.bytes, ..a }),
            (a, b) => a.or(b),
        }
    }
}

/// Weights that a segment stores as one buffer: a tensor or a stack of tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentTensor {
    /// Names of the tensors that the buffer contains.
    pub name: String,
    /// Bytes in the resident layout. If the layout depends on the device, this is the size of the largest
    /// layout.
    pub resident_bytes: u64,
    /// Whether the layout depends on the device.
    #[serde(skip)]
    pub layout_varies: bool,
    /// Whether the values are computed, as RoPE frequencies are. Such weights stay on the device if their segment
    /// is streamed.
    #[serde(skip)]
    pub is_generated: bool,
}

impl SegmentTensor {
    /// Creates weights from files, whose layout is the same on all devices.
    pub fn new(name: impl Into<String>, resident_bytes: u64) -> Self {
        Self { name: name.into(), resident_bytes, layout_varies: false, is_generated: false }
    }
}

impl Granularity {
    /// Returns the granularity of `segments`, the segments of a model.
    pub fn of(segments: &[Segment]) -> Self {
        match segments.iter().any(|s| matches!(s.kind, SegmentKind::Attention | SegmentKind::FeedForward)) {
            true => Granularity::HalfBlock,
            false => Granularity::Block,
        }
    }
}

impl Model {
    /// Returns the segments and their costs, in order.
    ///
    /// # Errors
    /// Returns [`ModelError::Unsupported`] if a tensor has no resident layout.
    pub fn segments(&self, lowering: &Lowering) -> Result<Vec<Segment>, ModelError> {
        self.check_kv(lowering.kv)?;
        self.check_context(lowering.context)?;
        let measure = Measure::new(self, lowering);
        let nodes = measure.graph.by_segment(self.segment_count());
        nodes.iter().enumerate().map(|(index, nodes)| measure.segment(index, nodes)).collect()
    }
}

/// Inputs for computing costs: the operator graph, and the programs that can need the most scratch memory.
struct Measure<'a> {
    model: &'a Model,
    lowering: &'a Lowering,
    graph: OperatorGraph,
    /// Programs without and with fast products of experts.
    basic: Vec<compile::Largest>,
    /// Programs for devices with matrix units, without and with products of experts on these.
    wide: Vec<compile::Largest>,
}

impl<'a> Measure<'a> {
    fn new(model: &'a Model, lowering: &'a Lowering) -> Self {
        let activations = lowering.activations;
        let has_experts = model.hyperparameters().extras.experts.is_some();
        let ways: &[bool] = if has_experts { &[false, true] } else { &[false] };
        let basic = |takes_experts| {
            let has = |kernel| takes_experts && matches!(kernel, Kernel::ExpertMatMul(_, Activations::Int8));
            compile::Largest::new(model, lowering, |t| basic_form(t, activations), has)
        };
        let wide = |takes_experts| {
            let has = |kernel| takes_experts && matches!(kernel, Kernel::ExpertMatMul(..));
            compile::Largest::new(model, lowering, |t| wide_form(t, activations), has)
        };
        Self {
            model,
            lowering,
            graph: model.graph(activations),
            basic: ways.iter().copied().map(basic).collect(),
            wide: ways.iter().copied().map(wide).collect(),
        }
    }

    /// Computes the costs of the segment with number `index`. `nodes` are its nodes in program order.
    fn segment(&self, index: usize, nodes: &[NodeIndex]) -> Result<Segment, ModelError> {
        let largest = |of: fn(&compile::Largest, usize) -> u64, programs: &[compile::Largest]| {
            programs.iter().map(|programs| of(programs, index)).fold(0, u64::max)
        };
        let scratch_bytes = largest(compile::Largest::scratch_bytes, &self.basic);
        let tensors = self.tensors(nodes)?;
        // All costs grow linearly with the rows.
        let (none, one) = (self.cost(nodes, 0), self.cost(nodes, 1));
        Ok(Segment {
            kind: self.model.segment_kind(index),
            name: self.model.segment_name(index),
            tensors,
            flops_per_row: one.flops,
            flops_per_row_position: one.flops_per_position,
            read_bytes: none.read_bytes,
            experts: one.experts,
            read_bytes_per_row: one.read_bytes - none.read_bytes,
            kv_bytes_per_position: one.kv_bytes_per_position,
            value_bytes_per_position: one.value_bytes_per_position,
            window: one.window.filter(|_| !one.attends_to_all),
            state_bytes: compile::state_bytes(&self.graph, nodes),
            scratch_bytes,
            wide_scratch_bytes: largest(compile::Largest::scratch_bytes, &self.wide).max(scratch_bytes),
            tensor_bytes: largest(compile::Largest::tensor_bytes, &self.basic)
                .max(largest(compile::Largest::tensor_bytes, &self.wide)),
        })
    }

    /// Returns the cost of `nodes` for a micro-batch of `rows` rows.
    fn cost(&self, nodes: &[NodeIndex], rows: u32) -> Cost {
        let cost = |index: &NodeIndex| {
            let node = self.graph.node(*index);
            let (weights, kv) = (self.model.weights(), self.lowering.kv);
            node.operator.lower().cost(&Work { weights, kv, width: node.width.into(), rows: rows.into() })
        };
        nodes.iter().map(cost).sum()
    }

    fn tensors(&self, nodes: &[NodeIndex]) -> Result<Vec<SegmentTensor>, ModelError> {
        let in_layout =
            |kept: fn(TensorType) -> Layout| compile::weight_buffers(self.model, &self.graph, nodes, kept);
        let (rows16, row_major) = (in_layout(|_| Layout::Rows16)?, in_layout(row_major_if_plain)?);
        let larger = |(a, b): (&WeightBuffer, &WeightBuffer)| SegmentTensor {
            name: a.name.clone(),
            resident_bytes: a.bytes().max(b.bytes()),
            layout_varies: !a.is_same(b),
            is_generated: a.is_generated(),
        };
        assert_eq!(rows16.len(), row_major.len(), "weight buffers in two layouts");
        Ok(rows16.iter().zip(&row_major).map(larger).collect())
    }
}

/// Returns the activation type of a product on a device with matrix units, for the largest micro-batch.
fn wide_form(tensor_type: TensorType, wanted: Activations) -> Activations {
    match (tensor_type, wanted) {
        (TensorType::F32, _) | (_, Activations::F32) => Activations::F32,
        _ => Activations::F16,
    }
}

/// Returns the resident layout of weights with type `tensor_type` on a device with matrix units.
fn row_major_if_plain(tensor_type: TensorType) -> Layout {
    if tensor_type.block_values() == 1 { Layout::RowMajor } else { Layout::Rows16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, WireType, test_models};
    use ragtag_kernels::KvType;

    fn lowering(activations: Activations) -> Lowering {
        Lowering {
            activations,
            kv: KvType::F16,
            context: 100,
            sequences: 2,
            kv_blocks: None,
            chunk: 48,
            logit_rows: 3,
            wire_type: WireType::F32,
        }
    }

    /// Builds a model in which every third block has a different weight type, as is common in mixed
    /// quantizations.
    fn mixed() -> Model {
        let shape =
            test_models::Shape { layers: 7, width: 256, ffn: 512, heads: 4, kv_heads: 2, vocabulary: 100 };
        shape.without_bytes(|layer| if layer % 3 == 0 { TensorType::Q6_K } else { TensorType::Q4_0 })
    }

    fn models() -> [Model; 5] {
        [test_models::bitnet(), test_models::llama(), test_models::qwen2(), test_models::qwen3(), mixed()]
    }

    #[test]
    fn halves_sum_to_their_block() {
        for model in models() {
            for activations in Activations::ALL {
                let lowering = lowering(activations);
                let blocks = model.segments(&lowering).unwrap();
                let halves = model.with_granularity(Granularity::HalfBlock).segments(&lowering).unwrap();
                assert_eq!(halves.len(), 2 * blocks.len() - 2);
                assert_eq!((&halves[0], halves.last()), (&blocks[0], blocks.last()));
                for (block, halves) in blocks[1..].iter().zip(halves[1..].chunks_exact(2)) {
                    let [attention, ffn] = halves else { panic!("two halves") };
                    assert_eq!(
                        (attention.kind, ffn.kind),
                        (SegmentKind::Attention, SegmentKind::FeedForward)
                    );
                    let sum = Segment {
                        kind: SegmentKind::Block,
                        name: block.name.clone(),
                        tensors: [&attention.tensors[..], &ffn.tensors].concat(),
                        flops_per_row: attention.flops_per_row + ffn.flops_per_row,
                        flops_per_row_position: attention.flops_per_row_position,
                        read_bytes: attention.read_bytes + ffn.read_bytes,
                        experts: ffn.experts,
                        read_bytes_per_row: attention.read_bytes_per_row + ffn.read_bytes_per_row,
                        kv_bytes_per_position: attention.kv_bytes_per_position,
                        value_bytes_per_position: attention.value_bytes_per_position,
                        window: attention.window,
                        state_bytes: attention.state_bytes,
                        scratch_bytes: attention.scratch_bytes.max(ffn.scratch_bytes),
                        wide_scratch_bytes: attention.wide_scratch_bytes.max(ffn.wide_scratch_bytes),
                        tensor_bytes: attention.tensor_bytes.max(ffn.tensor_bytes),
                    };
                    assert_eq!(*block, sum);
                    // Only the attention half has a cache.
                    assert_eq!((ffn.kv_bytes_per_position, ffn.flops_per_row_position), (0, 0));
                    assert!(ffn.flops_per_row > 0 && attention.kv_bytes_per_position > 0);
                }
            }
        }
    }

    /// Checks that the figures of a segment give the cost of its operators for any number of rows.
    #[test]
    fn figures_give_the_cost_for_any_number_of_rows() {
        for model in models() {
            let lowering = lowering(Activations::Int8);
            let measure = Measure::new(&model, &lowering);
            for (index, nodes) in measure.graph.by_segment(model.segment_count()).iter().enumerate() {
                let segment = measure.segment(index, nodes).unwrap();
                for rows in [0, 1, 2, 7, 48] {
                    let cost = measure.cost(nodes, rows);
                    let count = u64::from(rows);
                    assert_eq!(cost.read_bytes, segment.read_bytes + segment.read_bytes_per_row * count);
                    assert_eq!(cost.flops, segment.flops_per_row * count);
                    assert_eq!(cost.flops_per_position, segment.flops_per_row_position * count);
                }
            }
        }
    }

    #[test]
    fn few_rows_read_few_experts() {
        let experts = ExpertReads { bytes: 3200, count: 32, used: 4 };
        let counts = [0, 1, 8, 32, 4096].map(|rows| (experts.bytes_of(rows) / 100.0).round());
        assert_eq!(counts, [0.0, 4.0, 21.0, 32.0, 32.0]);
    }

    /// Checks that the segments of a model with 405 billion parameters can be computed without weight data.
    #[test]
    fn segments_of_a_large_model_need_no_weight_bytes() {
        let shape = test_models::Shape {
            layers: 126,
            width: 16384,
            ffn: 53248,
            heads: 128,
            kv_heads: 8,
            vocabulary: 128_256,
        };
        let model = shape.without_bytes(|_| TensorType::Q4_0).with_granularity(Granularity::HalfBlock);
        let segments = model.segments(&lowering(Activations::Int8)).unwrap();
        assert_eq!(segments.len(), 254);
        let resident: u64 = segments.iter().flat_map(|s| &s.tensors).map(|t| t.resident_bytes).sum();
        // The weights take 4.5 bits per parameter.
        assert!(resident.abs_diff(model.parameters() * 9 / 16) < resident / 100, "{resident}");
        assert!(model.parameters().abs_diff(405_000_000_000) < 2_000_000_000);
    }
}
