//! Conformance suite that tests the requirements for devices on every adapter.
//!
//! Each test is written once, against the hardware layer. It passes, fails with a reason, or is skipped with
//! a reason. Absent hardware is a visible skip. Only tests and the command `ragtag selftest` use this crate.
//!
//! | tests | subject |
//! | --- | --- |
//! | `memory/…` | buffers, fills, copies, uploads, downloads, running out of memory |
//! | `queues/…` | order, points across queues, points of other devices, poisoned timelines |
//! | `programs/…` | recording, replay, re-recording |
//! | `kernel/…` | every kernel variant against its reference, within its bound |
//!
//! The suite knows no backend by name.

mod bench;
mod kernels;
mod known;
mod memory;
mod programs;
mod queues;
mod report;
mod suite;
pub mod timing;

pub use known::KnownFailure;
pub use report::{Absent, Outcome, Report, Summary, Verdict};
pub use suite::{Part, Shapes, Suite, absent, run, run_all};
