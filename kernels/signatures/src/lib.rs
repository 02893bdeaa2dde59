//! Reads the signatures of kernels in OpenCL C, CUDA C++ and HIP C++ from their source, without a compiler.
//!
//! The ABI declares a kernel's launch interface, and the source repeats it. A driver that compiles the source
//! does not notice a difference. This crate lets tests compare ABI and source without a driver. It is
//! `no_std` with `alloc`, and has no dependencies and no `unsafe` code. So it builds for any target,
//! including WebAssembly.
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
//! # Supported
//!
//! The crate reads the text as a compiler does. A backslash continues a line. Comments and strings hide their
//! content. `#define` and `#undef` take effect where they appear. Macros with and without parameters are
//! expanded (including `#` and `##`). `#if`, `#ifdef`, `#ifndef`, `#elif` and `#else` select one branch. So a
//! kernel in a comment or under `#if 0` is ignored, and a kernel whose `__kernel` comes from a macro is
//! found. A kernel is a *definition* at file scope with `kernel` or `__kernel`, or with `extern "C"` followed
//! by `__global__`. Prototypes are ignored.
//!
//! # Not supported
//!
//! Only the text defines macros. If a driver defines more (`__OPENCL_VERSION__`, extensions, `-D`), the
//! caller prepends them as `#define` lines. `#include`, `#pragma`, `#error` and `#line` are ignored. Macros
//! with `...` are not expanded. A condition that is not an integer expression of C is false, and so is one
//! with `?:`. Types are plain words, and `typedef` is ignored. The crate knows nothing about particular
//! kernels, ABIs and drivers.
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
