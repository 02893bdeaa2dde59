//! What backends for stream-ordered GPU APIs have in common: a [`Device`](ragtag_hal::Device) over a trait for the API's
//! calls.
//!
//! CUDA and HIP have the same objects: streams in which work happens in order, events that are recorded in them and waited
//! for, graphs that are launched as one, modules of kernels. [`Driver`] names the calls; a backend implements it.
//!
//! This crate must not know any API, operator, kernel or model.

mod driver;

pub use driver::{Arguments, Driver, Facts, Heap, Launch};
