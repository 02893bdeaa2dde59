//! A `libamdhip64` for tests: HIP on NVIDIA GPUs, through CUDA's driver API and NVRTC.
//!
//! The prelude of HIP C++ is also valid CUDA C++, so NVIDIA GPUs compile and run the same sources as AMD's
//! compiler. AMD's own compilers, its runtime and waves of 64 stay untested. Knows nothing about the backend
//! that calls it.

mod cuda;
mod engine;
mod nvrtc;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// The engine behind the exported functions.
type Engine = engine::Cuda;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
