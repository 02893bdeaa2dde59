//! Ragtag's scheduler: the planner, the cores that decide what happens next, the actors that make devices do it, and the
//! simulator that proves the cores without a device.
//!
//! This crate must not name any backend. Its cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod core;
mod error;
pub mod sim;

pub use error::{Error, Refusal, Result};
