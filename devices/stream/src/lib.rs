//! The common part of the CUDA and HIP backends. It implements `ragtag-hal`'s driver trait with the calls of
//! [`Driver`], which each backend implements for its API.
//!
//! CUDA and HIP have the same objects: in-order streams, events that streams record and wait for, executable
//! graphs, and modules of kernels. [`StreamDevice`] is a device on top of a [`Driver`]. It has three streams,
//! each with a completion thread, runs programs as graphs, and pins host regions.
//!
//! | file | subject |
//! | --- | --- |
//! | `driver.rs` | the API's calls |
//! | `device.rs` | commands as API calls, either one by one or as graphs |
//! | `queue.rs` | a stream, as `ragtag-hal` uses it |
//! | `semaphore.rs` | semaphores that devices share |
//! | `module.rs` | modules and their kernels |
//! | `memory.rs`, `pins.rs` | device memory, pinned host memory |
//! | `library.rs`, `compiler.rs` | vendor libraries and compilers loaded at run time |
//! | `clock.rs` | conversion of the device's clock to the host's |
//!
//! This crate does not depend on a specific API, or on operators, kernels or models.

mod clock;
mod compiler;
mod device;
mod driver;
mod library;
mod memory;
mod module;
mod pins;
mod queue;
mod semaphore;
#[cfg(test)]
mod tests;

pub use compiler::{CompiledText, CompilerCalls, Output, OutputBytes};
pub use device::{StreamDevice, Streams, open};
#[cfg(unix)]
pub use driver::Import;
pub use driver::{Arguments, Driver, FunctionProperties, Heap, Launch, Operands};
pub use library::{Library, places};
pub use pins::{Pinned, Pins};
