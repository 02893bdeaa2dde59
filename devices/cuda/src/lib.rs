//! The CUDA backend: NVIDIA GPUs, named `cuda:0`, `cuda:1` and so on. It loads the driver library at run
//! time.
//!
//! A device is a [`StreamDevice`](ragtag_stream::StreamDevice) on top of the driver's calls. It has three
//! streams and runs programs as graphs. The driver compiles the kernels from PTX. If NVRTC is installed, it
//! compiles the CUDA C++ source of the kernels instead. From compute capability 9.0 on, programmatic
//! dependent launch overlaps the launch of a dependent kernel with the tail of its predecessor.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | devices and their properties |
//! | `driver.rs` | the driver's calls |
//! | `ptx.rs` | properties of the functions in a PTX source |
//! | `nvrtc.rs` | CUDA C++, compiled and cached on disk |
//! | `error.rs` | conversion of CUDA's codes to errors |
//! | `api/` | the driver library, NVRTC and cuBLASLt: functions, objects, calls; a kernel for short copies from the host |
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` and other environment variables. An adapter's `driver` shows the
//! value of `CUDA_VISIBLE_DEVICES`, because this variable can hide devices.
//!
//! This crate does not depend on operators, kernels or models.

mod api;
mod backend;
mod driver;
mod error;
mod nvrtc;
mod probe;
mod ptx;

pub use backend::{CudaBackend, CudaConfig};
