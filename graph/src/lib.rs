//! Models in Ragtag. This crate reads model files, builds operator graphs, divides them into segments,
//! computes the segments' costs, and compiles segments into programs for a device.
//!
//! The crate does not depend on backends or plans. It opens no files, starts no threads and reads no clocks.

#![forbid(unsafe_code)]

mod arch;
mod builder;
mod chat_templates;
pub mod checkpoint;
mod compile;
mod converted;
pub mod error;
pub mod execution;
pub mod gguf;
mod granularity;
pub mod graph;
mod json;
mod kv_ring;
mod lowering;
pub mod model;
pub mod ops;
mod passes;
pub mod program;
mod rope_lengths;
mod safetensors;
pub mod segment;
pub mod source;
mod stack;
pub mod stage;
#[cfg(test)]
mod test_models;
pub mod tokenizer;
mod unused;
pub mod weight_buffer;
pub mod weights;
mod wire_type;

pub use arch::{
    ARCHITECTURES, Architecture, Experts, Extras, Growth, Hyperparameters, Indexer, Latent, LayerSet,
    Llama3Scaling, Recurrent, Rope, RopeFactors, RopePairing, RopeScaling, RopeScalingError, Yarn,
};
pub use chat_templates::ChatTemplates;
pub use compile::{buckets, compile};
pub use error::{CompileError, FormatError, ModelError, SourceError, TokenizerError};
pub use gguf::{Metadata, ModelFile};
pub use granularity::{Granularity, SegmentKind};
pub use kv_ring::KvRing;
pub use lowering::Lowering;
pub use model::Model;
pub use program::{Program, ProgramStep, RowKind, Slice, StageBuffer};
pub use rope_lengths::RopeLengths;
pub use segment::{ExpertReads, Segment, SegmentTensor};
pub use source::{Directory, MemorySource, Source};
pub use stack::{Stack, StackedMatrix};
pub use stage::{CompiledStage, StageResult};
pub use tokenizer::{TextStream, Tokenizer};
pub use unused::Unused;
pub use weight_buffer::{WeightBuffer, WeightChunk, WeightContent};
pub use weights::{TensorInfo, Weights};
pub use wire_type::WireType;
