//! Kernels: for each one its binary interface, its reference in plain Rust, its numerics class, its sources, and the
//! table that chooses a variant by a device's capabilities.
//!
//! This crate must not know any model, plan or backend; it does no I/O and starts no thread.

pub mod blocks;
mod kernel;
pub mod params;

pub use blocks::TensorType;
pub use kernel::{Activations, Kernel, KvType, NumericsClass};
