//! A synthetic model, and devices that do nothing, for tests of the runtime without a model file.
//!
//! The model's kernels are a hash chain over the tokens of a sequence, stored in the KV cache by layer. So
//! the next token depends on every weight, earlier token, position and cache block, and any error gives other
//! tokens than [`Model::reference`].

#![allow(missing_docs)]

mod model;
pub mod null;

pub use model::Model;
