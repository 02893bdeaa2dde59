//! The common part of backends for stream-ordered GPU APIs: `ragtag-hal`'s driver over a trait for the API's
//! calls.
//!
//! CUDA and HIP have the same objects: in-order streams, events that are recorded in them and waited for,
//! graphs that are launched as one, and modules of kernels. [`Driver`] declares the calls, and a backend
//! implements it. [`StreamDevice`] is the device over it: three streams, each with a completion thread;
//! programs as graphs; pinned host regions.
//!
//! | file | subject |
//! | --- | --- |
//! | `driver.rs` | the API's calls |
//! | `device.rs` | commands as API calls, one by one and as graphs |
//! | `queue.rs` | a stream, as `ragtag-hal` uses it |
//! | `module.rs` | modules and their kernels |
//! | `memory.rs`, `pins.rs` | device memory, pinned host memory |
//! | `library.rs`, `compiler.rs` | vendor libraries and compilers loaded at run time |
//! | `clock.rs` | conversion of the device's clock to the host's |
//!
//! Knows no API, operator, kernel or model.

mod clock;
mod compiler;
mod device;
mod driver;
mod library;
mod memory;
mod module;
mod pins;
mod queue;
#[cfg(test)]
mod tests;

pub use compiler::{CompiledText, CompilerCalls, Output, OutputBytes};
pub use device::{StreamDevice, Streams, open};
pub use driver::{Arguments, Driver, Facts, Heap, Launch, Operands};
pub use library::{Library, places};
pub use pins::Pins;
