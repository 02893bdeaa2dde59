//! Tests the driver through Level Zero's genuine loader and its validation layer.

mod client;
mod execution;
#[allow(dead_code, missing_docs)] // the driver's own declarations
#[path = "../../src/types.rs"]
mod types;
