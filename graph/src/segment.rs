//! Segments: the smallest units of placement, with what they cost in memory, arithmetic and traffic.

use crate::compile;
use crate::cost::node_cost;
use crate::model::{Lowering, Model, ModelError, basic_form};
use crate::program::WeightBuffer;
use ragtag_kernels::{Activations, Layout, TensorType};
use serde::Serialize;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentKind {
    /// Token ids to rows.
    Embedding,
    /// One transformer block.
    Block,
    /// Final norm and the projection to logits.
    Head,
}

/// One segment with its costs. `rows` below are tokens of a micro-batch, `positions` what a token attends to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// `embedding`, `block 0` …, `head`.
    pub name: String,
    /// The weights that it needs, stacks of tensors as one. Two segments may share one (tied embeddings); on one device it is kept once.
    pub tensors: Vec<SegmentTensor>,
    /// Floating-point operations for each row. For the head: for each logit row.
    pub flops_per_row: u64,
    /// Floating-point operations for each row and position attended to.
    pub flops_per_row_position: u64,
    /// Bytes of weights that one micro-batch reads, however many rows it has (the embedding reads rows: see
    /// `read_bytes_per_row`).
    pub read_bytes: u64,
    /// Bytes read and written for each row, activations within the segment apart.
    pub read_bytes_per_row: u64,
    /// Bytes of keys and values for each position of each sequence; what decode reads for each row and position, too.
    pub kv_bytes_per_position: u64,
    /// Scratch bytes at the largest micro-batch. A stage needs the largest of its segments, not the sum.
    pub scratch_bytes: u64,
    /// The same on a device that prefers f16 activations for such a micro-batch, and widens quantised weights for them.
    pub wide_scratch_bytes: u64,
}

/// Weights that a segment keeps on its device in one piece: a tensor, or a stack of some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentTensor {
    /// Its name: those of its tensors.
    pub name: String,
    /// Its bytes in the resident layout, or in the larger one where devices differ.
    pub resident_bytes: u64,
}

/// The segments of a model, in order.
pub(crate) fn segments(model: &Model, lowering: &Lowering) -> Result<Vec<Segment>, ModelError> {
    let graph = model.graph(lowering.activations);
    let count = model.segment_count();
    let mut segments: Vec<Segment> = (0..count)
        .map(|s| Segment {
            kind: match s {
                0 => SegmentKind::Embedding,
                s if s + 1 == count => SegmentKind::Head,
                _ => SegmentKind::Block,
            },
            name: model.segment_name(s),
            tensors: Vec::new(),
            flops_per_row: 0,
            flops_per_row_position: 0,
            read_bytes: 0,
            read_bytes_per_row: 0,
            kv_bytes_per_position: 0,
            scratch_bytes: 0,
            wide_scratch_bytes: 0,
        })
        .collect();
    for node in graph.ordered() {
        let node = graph.node(node);
        let (segment, cost) = (&mut segments[node.segment], node_cost(model, node, lowering)?);
        segment.flops_per_row += cost.flops_per_row;
        segment.flops_per_row_position += cost.flops_per_row_position;
        segment.read_bytes += cost.read_bytes;
        segment.read_bytes_per_row += cost.read_bytes_per_row;
        segment.kv_bytes_per_position += cost.kv_bytes_per_position;
    }
    let basic = compile::Largest::new(model, lowering, |t| basic_form(t, lowering.activations));
    let wide = compile::Largest::new(model, lowering, |t| wide_form(t, lowering.activations));
    for (index, segment) in segments.iter_mut().enumerate() {
        let range = index..index + 1;
        segment.scratch_bytes = basic.scratch_bytes(range.clone())?;
        segment.wide_scratch_bytes = wide.scratch_bytes(range.clone())?.max(segment.scratch_bytes);
        let in_layout =
            |kept: fn(TensorType) -> Layout| compile::weight_buffers(model, &graph, range.clone(), kept);
        let (rows16, row_major) = (in_layout(|_| Layout::Rows16)?, in_layout(row_major_if_plain)?);
        let larger = |(a, b): (&WeightBuffer, &WeightBuffer)| SegmentTensor {
            name: a.name.clone(),
            resident_bytes: a.bytes().max(b.bytes()),
        };
        segment.tensors = rows16.iter().zip(&row_major).map(larger).collect();
    }
    Ok(segments)
}

/// The activations of a product on a device with matrix units, for the largest micro-batch.
fn wide_form(tensor_type: TensorType, wanted: Activations) -> Activations {
    match (tensor_type, wanted) {
        (TensorType::F32, _) | (_, Activations::F32) => Activations::F32,
        _ => Activations::F16,
    }
}

/// The layouts of a device with matrix units.
fn row_major_if_plain(tensor_type: TensorType) -> Layout {
    if tensor_type.block_values() == 1 { Layout::RowMajor } else { Layout::Rows16 }
}
