//! A `libamdhip64` for tests: HIP on every OpenCL device with shared virtual memory, so that addresses are
//! plain pointers.
//!
//! A HIP C++ kernel is the C family's source behind HIP's prelude. This crate replaces the prelude by that of
//! OpenCL C, and emulates matrix instructions with functions written from AMD's ISA documents. So memory,
//! queues, programs and the kernels' source are executed; AMD's compilers are not. Knows nothing about the
//! backend that calls it.

mod engine;
mod program;
mod work;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// The engine behind the exported functions.
type Engine = engine::OpenCl;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
