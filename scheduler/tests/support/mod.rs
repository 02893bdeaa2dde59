//! A synthetic model, and devices that do no work, for tests that need no model file.
//!
//! The model's kernels compute a hash chain over the tokens of a sequence, and store it in the KV cache by
//! layer. So the next token depends on every weight, earlier token, position and cache block. Any error
//! produces tokens that differ from [`Model::reference`].

#![allow(missing_docs)]

mod model;
pub mod null;

pub use model::Model;
