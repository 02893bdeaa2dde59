//! Tests the driver through Level Zero's genuine loader and its validation layer.

mod client;
mod errors;
mod execution;
mod faults;
mod memory;
mod properties;
#[allow(dead_code, missing_docs)] // the driver's own declarations
#[path = "../../src/types.rs"]
mod types;
