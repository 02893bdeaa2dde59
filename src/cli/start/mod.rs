//! The start of every command that places a model: arguments → model → devices → plan → engine.
//!
//! Each step takes what the steps before it return. `model.rs` opens the model. `wanted.rs` merges the placement
//! arguments with a plan file. `devices.rs` probes and selects devices, and `speeds.rs` measures them and their links.
//! `placed.rs` makes the plan and starts the engine.

pub(super) mod devices;
pub(super) mod model;
mod overrides;
mod pins;
pub(super) mod placed;
pub(super) mod speeds;
pub(super) mod wanted;
