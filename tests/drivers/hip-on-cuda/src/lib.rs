//! Test driver `libamdhip64` that runs HIP on NVIDIA GPUs, through CUDA's driver API and NVRTC.
//!
//! The prelude of HIP C++ is also valid CUDA C++. NVRTC therefore compiles the same sources as AMD's
//! compiler, and NVIDIA GPUs run them. AMD's compilers, AMD's runtime and waves of 64 work items remain
//! untested. The crate knows nothing about the backend that calls it.

mod cuda;
mod engine;
mod nvrtc;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// Engine behind the exported functions.
type Engine = engine::Cuda;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
