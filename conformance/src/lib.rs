//! Conformance suite. For every adapter, it checks that the device meets the requirements of the hardware
//! layer.
//!
//! Each test is written once, against the interface of the hardware layer. It passes, fails with a reason, or
//! is skipped with a reason. If hardware is absent, the report shows a skip. Tests and the command
//! `ragtag selftest` run the suite. An engine tries the kernels of its plan ([`try_kernels`]).
//!
//! | tests | subject |
//! | --- | --- |
//! | `memory/…` | buffers, fills, copies, uploads, downloads, running out of memory |
//! | `queues/…` | order, points across queues, points of other devices, poisoned timelines |
//! | `programs/…` | recording, replay, re-recording |
//! | `kernel/…` | every kernel variant against its reference, within its bound |
//!
//! The crate does not depend on any particular backend.

mod bench;
mod kernels;
mod known;
mod memory;
mod programs;
mod queues;
mod report;
mod suite;
pub mod timing;
mod trial;

pub use known::KnownFailure;
pub use report::{Absent, Outcome, Report, Summary, Verdict};
pub use suite::{Shapes, Suite, absent, run, run_all};
pub use trial::{Trial, try_kernels};
