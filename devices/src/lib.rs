//! The devices of this machine: which backends there are, what they find, which adapters are one physical device, and
//! which of all that the user wants.
//!
//! This crate names backends and opens their adapters; it must not know what runs on them, read the environment or
//! print.

mod child;
mod handicap;
mod identity;
mod selection;
mod table;

pub use child::ProbeChild;
pub use handicap::{Handicap, HandicapError};
/// The body of a process that compiles for HIP: see [`Config::hip_compiler`].
#[cfg(feature = "hip")]
pub use ragtag_hip::compile_child as compile_for_hip;
pub use selection::{Choice, Filter, Requested, Selection, SelectionError, Source, Term};
pub use table::{BackendReport, Backends, Check, Config, Physical, Report, Status};
