//! The HIP backend: AMD GPUs through HIP 5, 6 and 7, as `hip:0 …`.
//!
//! The libraries are loaded at run time. `ragtag-stream` implements the device. This crate has HIP's calls,
//! its properties of devices, and the compilation of kernels: from HIP C++ by hiprtc, in a child process if
//! the program provides one ([`compile_child`]), cached on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs`, `architecture.rs` | devices, their properties, and the features of their architectures |
//! | `driver.rs` | HIP's implementation of the stream-ordered driver calls |
//! | `program.rs`, `child.rs` | code objects: caching, and compilation in a child process |
//! | `error.rs`, `api/` | HIP's codes, libraries and calls |
//!
//! Knows no operator, kernel or model.

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
