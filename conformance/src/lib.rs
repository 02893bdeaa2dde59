//! The conformance suite: what every device owes, tried out on every adapter.
//!
//! Each test is written once against the hardware layer. It passes, fails with a reason, or is skipped with a reason;
//! absent hardware is a visible skip. Tests and the command `ragtag selftest` use this crate, nothing else does.
//!
//! | tests | subject |
//! | --- | --- |
//! | `memory/…` | buffers, fills, copies, uploads, downloads, running out of memory |
//! | `queues/…` | order, points across queues, points of other devices, poisoned timelines |
//! | `programs/…` | record, replay, record anew |
//! | `kernel/…` | every kernel variant against its reference, within its bound |
//!
//! This crate must not know any backend by name.

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
