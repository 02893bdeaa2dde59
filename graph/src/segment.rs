//! Segments: the smallest units of placement, with what they cost in memory, arithmetic and traffic.

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
    /// Names of the tensors that it needs. Two segments may share one (tied embeddings); on one device it is kept once.
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

/// A tensor that a segment keeps on its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentTensor {
    /// Its name.
    pub name: String,
    /// Its bytes in the resident layout.
    pub resident_bytes: u64,
}
