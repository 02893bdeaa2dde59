//! The model side of Ragtag: files become architectures, architectures become operator graphs, graphs become segments
//! with costs, and segments become programs for a device.
//!
//! This crate must not know any backend or plan; it opens no file, starts no thread and reads no clock.

#![forbid(unsafe_code)]

pub mod program;
pub mod segment;

pub use program::{CompiledStage, Place, Program, Slice, Step, WeightBuffer};
pub use segment::{Segment, SegmentKind};
