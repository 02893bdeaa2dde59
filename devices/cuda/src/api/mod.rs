//! Calls of the driver library, NVRTC and cuBLASLt. All `unsafe` code except that of `driver.rs` is here.
//!
//! Does not know Ragtag's devices.

mod cublas_lt;
mod functions;
mod nvrtc;
mod objects;
mod partition;

pub(crate) use cublas_lt::{CublasLt, Products, Workspace};
pub(crate) use functions::{Functions, check, enter, version};
pub(crate) use nvrtc::Nvrtc;
pub(crate) use objects::{Context, Event, Function, Graph, Module, Pool, Stream};

/// Returns the paths to try for a library of NVIDIA's toolkit, which is not part of the driver and often off
/// the loader's path.
fn toolkit_places(names: &[&str]) -> Vec<std::ffi::OsString> {
    ragtag_stream::places(names, &["CUDA_HOME", "CUDA_PATH"], "/usr/local/cuda", "lib64")
}
