//! Reads the signatures of kernels in OpenCL C, CUDA C++ and HIP C++ from their source, without a compiler.
//!
//! What a kernel is launched with is declared in its ABI and written again in its source; a driver that compiles the source
//! notices no difference. Here the two can be compared wherever tests run, with no driver at all. The crate is pure: `no_std`
//! with `alloc`, no dependency, no `unsafe`, so that it builds for any target, WebAssembly among them.
//!
//! ```
//! use ragtag_signatures::{AddressSpace, parse_kernel_signatures};
//!
//! let kernels = parse_kernel_signatures("
//!     #define KERNEL(items) __kernel __attribute__((reqd_work_group_size(items, 1, 1))) void
//!     KERNEL(64) scale(__global float *restrict x, const float by) { x[get_global_id(0)] *= by; }
//! ");
//! assert_eq!(kernels[0].name, "scale");
//! assert_eq!(kernels[0].work_group, Some([64, 1, 1]));
//! assert_eq!(kernels[0].args[0].qualifier, AddressSpace::Global);
//! assert!(kernels[0].args[0].is_pointer && !kernels[0].args[1].is_pointer);
//! ```
//!
//! # What is understood
//!
//! The text is read as a compiler reads it: lines that end in a backslash go on, comments and strings hide what is in them,
//! `#define` and `#undef` act from where they stand, macros with and without parameters are expanded (`#` and `##` too),
//! and of `#if`, `#ifdef`, `#ifndef`, `#elif` and `#else` one branch counts. So a kernel in a comment or under `#if 0` is
//! none, and one whose `__kernel` hides behind a macro is one. A kernel is a *definition* at file scope with `kernel` or
//! `__kernel` in it, or with `extern "C"` and, after it, `__global__`; a prototype is none.
//!
//! # What is not
//!
//! Nothing is defined but by the text: what a driver defines (`__OPENCL_VERSION__`, extensions, `-D`) is put before it as
//! `#define` lines by whoever wants it. `#include` is passed over, as are `#pragma`, `#error` and `#line`. Macros with `...`
//! stay as they are. A condition that is no integer expression of C (no `?:`) is false. Types are words: `typedef` is not
//! followed. This crate must not know any kernel, ABI or driver.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod condition;
mod lexer;
mod macros;
mod preprocessor;
mod signature;
mod validate;

pub use signature::{
    AddressSpace, KernelArg, KernelSignature, parse_kernel_signatures, source_contains_kernel,
};
pub use validate::{ValidationError, validate_kernel_source};
