//! A `libamdhip64` for tests: HIP on every OpenCL device of the machine whose memory is shared virtual memory, so that an
//! address is an address.
//!
//! Kernels come as HIP C++ whose text is the C family's behind a prelude of its own; here the prelude of OpenCL C takes its
//! place, and functions after the ISA documents that of matrix instructions. So memory, queues, programs and the kernels' text
//! are executed, and AMD's compilers are not. This crate must not know the backend that calls it.

mod engine;
mod program;
mod work;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// What the exported functions are over.
type Engine = engine::OpenCl;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
