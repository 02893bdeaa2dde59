//! The start of every command that places a model: arguments → model → devices → plan → engine.
//!
//! Each step takes what the steps before it return. `model.rs` opens the model. `wanted.rs` merges the placement
//! arguments with a plan file. `devices.rs` probes and selects devices, and `speeds.rs` measures them and their links.
//! `placed.rs` makes the plan and starts the engine.

mod devices;
mod model;
mod placed;
mod speeds;
mod wanted;

pub(super) use devices::{isolate, options as device_options, selected};
pub(super) use model::{open, open_metadata, scaled};
pub(super) use placed::{Placed, fleet, for_fleet_or_devices, open_fleet, placed, placed_while};
pub(super) use speeds::{calibrated, warnings};
pub(super) use wanted::{Needs, usual_kv, workload};
