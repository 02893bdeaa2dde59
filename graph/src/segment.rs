//! Segments: the smallest units of placement, with what they cost in memory, arithmetic and traffic.

use crate::compile;
use crate::cost::node_cost;
use crate::model::{Lowering, Model, ModelError};
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
}

/// Weights that a segment keeps on its device in one piece: a tensor, or a stack of some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentTensor {
    /// Its name: those of its tensors.
    pub name: String,
    /// Its bytes in the resident layout.
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
    for (index, segment) in segments.iter_mut().enumerate() {
        segment.scratch_bytes = compile::scratch_bytes(model, &graph, index..index + 1, lowering)?;
        segment.tensors = compile::weight_buffers(model, &graph, index..index + 1)?
            .into_iter()
            .map(|w| SegmentTensor { resident_bytes: w.bytes(), name: w.name })
            .collect();
    }
    Ok(segments)
}
