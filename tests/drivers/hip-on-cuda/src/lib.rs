//! A `libamdhip64` for tests: HIP on NVIDIA GPUs, by the driver API of CUDA and NVRTC.
//!
//! The prelude of HIP C++ is CUDA's as well, so that the very texts that AMD's compiler gets are compiled and executed. What
//! stays untried are AMD's own compilers, its runtime and waves of 64. This crate must not know the backend that calls it.

mod cuda;
mod engine;
mod nvrtc;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// What the exported functions are over.
type Engine = engine::Cuda;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
