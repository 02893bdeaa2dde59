//! The HIP backend: AMD GPUs through HIP 5, 6 and 7, named `hip:0`, `hip:1` and so on.
//!
//! The backend loads HIP's libraries at run time. `ragtag-stream` implements the device. This crate contains
//! HIP's calls, and detects devices and their properties. It compiles kernels from HIP C++ with hiprtc and
//! caches them on disk. If the application provides a child process ([`compile_child`]), the compiler runs in
//! that process.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs`, `architecture.rs` | devices, their properties, and the features of their architectures |
//! | `driver.rs` | implementation of the stream-ordered driver calls with HIP |
//! | `program.rs`, `child.rs` | code objects: caching, and compilation in a child process |
//! | `error.rs`, `api/` | HIP's codes, libraries and calls |
//!
//! This crate does not depend on operators, kernels or models.

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
