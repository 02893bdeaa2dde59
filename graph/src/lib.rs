//! The model side of Ragtag: file formats, tokenizers, architectures, operators, costs, segments, programs.
//!
//! This crate does no I/O, starts no thread and reads no clock; it must not know any backend or scheduler.
#![forbid(unsafe_code)]

pub mod error;
pub mod gguf;
pub mod source;
pub mod tokenizer;
pub mod weights;

pub use error::{FormatError, SourceError, TokenizerError};
pub use gguf::{Metadata, ModelFile};
pub use source::{MemorySource, Source};
pub use tokenizer::{TextStream, Tokenizer};
pub use weights::{TensorInfo, Weights};
