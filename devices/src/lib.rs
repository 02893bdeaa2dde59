//! The devices of this machine: the available backends, their adapters, the adapters that represent the same
//! physical device, the user's selection, and memory caps.
//!
//! This crate names backends and opens their adapters. It does not know the kernels or models that run on
//! devices. It neither reads the environment nor prints.

mod child;
mod identity;
mod library;
mod memory;
mod names;
mod selection;
mod sensors;
mod table;
mod throttle;

pub use child::ProbeChild;
pub use memory::{MemoryCapError, MemoryCaps};
pub use names::canonical;
/// Entry point of a child process that compiles HIP sources: see [`Config::hip_compiler`].
#[cfg(feature = "hip")]
pub use ragtag_hip::compile_child as compile_for_hip;
pub use selection::{
    Choice, Filter, Requested, Selection, SelectionError, SelectionOrigin, Term, size_bytes,
};
pub use table::{BackendReport, Backends, Check, Config, Physical, Report, Status};
pub use throttle::{ThrottleError, ThrottleSpec};
