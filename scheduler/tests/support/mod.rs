//! A made-up model, and devices that do nothing, so that the runtime can be tested without a model file.
//!
//! The kernels of the model are a hash chain over the tokens of a sequence, kept in the key-value cache by layer, so that the
//! next token depends on every weight, every earlier token, every position and every cache block. Whatever goes wrong between
//! them gives other tokens than [`Model::reference`].

#![allow(missing_docs)]

mod model;
pub mod null;

pub use model::Model;
