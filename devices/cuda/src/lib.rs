//! The CUDA backend: NVIDIA's GPUs as `cuda:0 …`, through the driver's library, which is found when the program runs.
//!
//! A device is a [`StreamDevice`](ragtag_stream::StreamDevice) over the driver's calls: three streams, programs as graphs.
//! Kernels are PTX, which the driver compiles, or CUDA C++ where NVRTC is found. On devices of compute capability 9.0 and
//! newer a kernel's launch overlaps the end of the kernel before it, if the kernel waits for that by itself.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | devices, and what they say of themselves |
//! | `driver.rs` | the calls that a device is made of |
//! | `ptx.rs` | what a text in PTX says about its functions |
//! | `nvrtc.rs` | CUDA C++, compiled and kept on disk |
//! | `error.rs` | CUDA's codes as errors |
//! | `api/` | the driver's library, NVRTC and cuBLASLt: functions, objects, calls |
//!
//! `CUDA_VISIBLE_DEVICES` and the other variables of CUDA's own are the driver's to read; the first is named in an adapter's
//! `driver`, because it says why a device is not shown.
//!
//! This crate must not know any operator, kernel or model.

mod api;
mod backend;
mod driver;
mod error;
mod nvrtc;
mod probe;
mod ptx;

pub use backend::{CudaBackend, CudaConfig};
