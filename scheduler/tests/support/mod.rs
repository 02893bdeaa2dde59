//! A made-up device and a made-up model for it, so that the runtime can be tested without a backend.
//!
//! The device really moves bytes: three threads, one for each queue, execute commands in order and honour points. Buffers
//! start as 0xff. Its "kernels" are interpreted here: a hash chain over the tokens of a sequence, kept in the key-value
//! cache by layer, so that the next token depends on every weight, every earlier token, every position and every cache
//! block. Whatever goes wrong between them gives other tokens than [`Model::reference`].

#![allow(missing_docs, dead_code)]

mod device;
mod model;
pub mod null;

pub use device::{FakeDevice, FakeOptions};
pub use model::{Model, mix};
