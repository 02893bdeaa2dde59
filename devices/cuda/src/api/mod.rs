//! The calls of the driver's library, of NVRTC and of cuBLASLt. All `unsafe` but that of `driver.rs` is here.
//!
//! This module must not know what a device of Ragtag is.

mod cublas_lt;
mod functions;
mod nvrtc;
mod objects;
mod partition;

pub(crate) use cublas_lt::{CublasLt, Products, Workspace};
pub(crate) use functions::{Functions, check, enter, version};
pub(crate) use nvrtc::Nvrtc;
pub(crate) use objects::{Context, Event, Function, Graph, Module, Pool, Stream};

/// Places to try for a library of NVIDIA's toolkit, which does not come with the driver and often lies off the loader's path.
fn toolkit_places(names: &[&str]) -> Vec<std::ffi::OsString> {
    ragtag_stream::places(names, &["CUDA_HOME", "CUDA_PATH"], "/usr/local/cuda", "lib64")
}
