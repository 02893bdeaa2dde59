//! The CUDA backend: NVIDIA GPUs as `cuda:0 …`, through the driver library, which is loaded at run time.
//!
//! A device is a [`StreamDevice`](ragtag_stream::StreamDevice) over the driver's calls: three streams,
//! programs as graphs. Kernels are PTX, which the driver compiles, or CUDA C++ if NVRTC is installed. From
//! compute capability 9.0 on, a kernel's launch overlaps the end of its predecessor if the kernel itself
//! waits for it.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | devices and their properties |
//! | `driver.rs` | the driver's calls |
//! | `ptx.rs` | properties of the functions in a PTX source |
//! | `nvrtc.rs` | CUDA C++, compiled and cached on disk |
//! | `error.rs` | CUDA's codes as errors |
//! | `api/` | the driver library, NVRTC and cuBLASLt: functions, objects, calls |
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` and CUDA's other variables. An adapter's `driver` names the first,
//! because it explains missing devices.
//!
//! Knows no operator, kernel or model.

mod api;
mod backend;
mod driver;
mod error;
mod nvrtc;
mod probe;
mod ptx;

pub use backend::{CudaBackend, CudaConfig};
