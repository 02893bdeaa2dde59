//! The calls of the driver's library, of NVRTC and of cuBLASLt. All `unsafe` but that of `driver.rs` is here.
//!
//! This module must not know what a device of Ragtag is.

mod cublas_lt;
mod functions;
mod nvrtc;
mod objects;
mod partition;
mod table;
mod toolkit;

pub(crate) use cublas_lt::{CublasLt, Products, Workspace};
pub(crate) use functions::{Functions, check, version};
pub(crate) use nvrtc::Nvrtc;
pub(crate) use objects::{Context, Event, Function, Graph, Module, Pool, Stream};
