//! The calls of the driver's library and of NVRTC. All `unsafe` but that of `driver.rs` is here.
//!
//! This module must not know what a device of Ragtag is.

mod functions;
mod nvrtc;
mod objects;

pub(crate) use functions::{Functions, check, version};
pub(crate) use nvrtc::Nvrtc;
pub(crate) use objects::{Context, Event, Function, Graph, Module, Pool, Stream};
