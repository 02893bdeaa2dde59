//! Reads the signatures of kernels from OpenCL C, CUDA C++ and HIP C++ source, without a compiler.
//!
//! The ABI declares a kernel's launch interface, and the kernel's source repeats it. A driver that compiles
//! the source does not check it against the ABI. With this crate, tests can compare the two without a driver.
//! It is `no_std` with `alloc`, and has no dependencies and no `unsafe` code. It therefore builds for any
//! target, including WebAssembly.
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
//! The crate reads the source as a compiler does. A backslash continues a line. Text in comments and string
//! literals has no effect. `#define` and `#undef` take effect where they appear. The crate expands macros
//! with and without parameters, including `#` and `##`. `#if`, `#ifdef`, `#ifndef`, `#elif` and `#else`
//! select one branch. The crate therefore ignores a kernel in a comment or under `#if 0`, and finds a kernel
//! whose `__kernel` comes from a macro. A kernel is a *definition* at file scope with `kernel` or `__kernel`,
//! or with `extern "C"` followed by `__global__`. Prototypes are ignored.
//!
//! # Not supported
//!
//! The crate expands only macros that the source defines. If a driver predefines other macros
//! (`__OPENCL_VERSION__`, extensions, `-D`), the caller prepends them to the source as `#define` lines. The
//! crate ignores `#include`, `#pragma`, `#error` and `#line`, and does not expand macros with `...`. A
//! condition is false if it contains `?:` or is not a C integer expression. The crate treats types as plain
//! words and ignores `typedef`. It is independent of particular kernels, ABIs and drivers.
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
