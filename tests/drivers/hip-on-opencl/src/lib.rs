//! Test driver `libamdhip64` that runs HIP on every OpenCL device with shared virtual memory. On these
//! devices, addresses are plain pointers.
//!
//! A HIP C++ kernel consists of HIP's prelude and the source that all C-like languages share. This crate
//! replaces HIP's prelude with the prelude of OpenCL C. It emulates AMD's matrix instructions with functions
//! written from AMD's ISA documents. The tests therefore cover memory, queues, programs and kernel sources,
//! but not AMD's compilers. The crate knows nothing about the backend that calls it.

mod engine;
mod program;
mod work;

use hip_shim::symbols::Handle;
use std::ffi::c_char;

/// Engine behind the exported functions.
type Engine = engine::OpenCl;

use hip_shim::export;
ragtag_hip::hip_functions!(export);
