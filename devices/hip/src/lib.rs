//! The HIP backend: AMD's GPUs through HIP 5, 6 and 7, as `hip:0 …`.
//!
//! The libraries are found when the program runs. What a device does is `ragtag-stream`'s; here are HIP's calls, what it
//! says about devices, and how kernels are compiled: from HIP C++, by hiprtc, in a process of its own where the program
//! provides one ([`compile_child`]), and kept on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs`, `architecture.rs` | devices, what they say of themselves, and what follows from their architecture |
//! | `driver.rs` | HIP's calls as a device over streams wants them |
//! | `program.rs`, `child.rs` | code objects: where they are compiled, and how they are kept |
//! | `error.rs`, `api/` | HIP's codes, libraries and calls |
//!
//! This crate must not know any operator, kernel or model.

mod api;
mod architecture;
mod backend;
mod child;
mod driver;
mod error;
mod probe;
mod program;

#[doc(hidden)]
pub use api::symbols;
pub use backend::{HipBackend, HipConfig};
pub use child::compile_child;
