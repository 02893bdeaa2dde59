//! Calls to the driver library, NVRTC and cuBLASLt. All `unsafe` code of the crate is in this module and in
//! `driver.rs`.
//!
//! This module does not depend on Ragtag's devices.

mod cublas_lt;
#[cfg(unix)]
mod external;
mod functions;
mod nvrtc;
mod objects;
mod partition;
mod upload;

pub(crate) use cublas_lt::{CublasLt, Products, Workspace};
#[cfg(unix)]
pub(crate) use external::ExternalMemory;
pub(crate) use functions::{Functions, check, enter, version};
pub(crate) use nvrtc::Nvrtc;
pub(crate) use objects::{Context, Event, Function, Graph, Module, Pool, Stream};
pub(crate) use upload::Uploads;

/// Returns the paths to try for a library of NVIDIA's CUDA toolkit. The toolkit is separate from the driver,
/// and its folder is often not in the loader's search path.
fn toolkit_places(names: &[&str]) -> Vec<std::ffi::OsString> {
    ragtag_stream::places(names, &["CUDA_HOME", "CUDA_PATH"], "/usr/local/cuda", "lib64")
}
