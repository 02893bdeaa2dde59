//! What backends for stream-ordered GPU APIs have in common: `ragtag-hal`'s driver over a trait for the API's calls.
//!
//! CUDA and HIP have the same objects: streams in which work happens in order, events that are recorded in them and waited
//! for, graphs that are launched as one, modules of kernels. [`Driver`] names the calls; a backend implements it, and
//! [`StreamDevice`] is the device over it: three streams, each with a thread that watches its events; programs that are
//! graphs; host regions that are pinned.
//!
//! | file | subject |
//! | --- | --- |
//! | `driver.rs` | the API's calls |
//! | `device.rs` | commands as the API's calls, one by one and as graphs |
//! | `queue.rs` | a stream, as the lanes of `ragtag-hal` use it |
//! | `module.rs` | modules and their kernels |
//! | `memory.rs`, `pins.rs` | memory of the device, pinned memory of the host |
//! | `library.rs`, `compiler.rs` | libraries that are found when the program runs, and compilers among them |
//! | `clock.rs` | the device's clock in terms of the host's |
//!
//! This crate must not know any API, operator, kernel or model.

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
