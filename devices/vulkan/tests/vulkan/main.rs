//! Tests of the Vulkan backend on every Vulkan device of this machine.
//!
//! The validation layer, if installed, checks every call, and one objection fails the test.
//! `RAGTAG_VULKAN_VALIDATION=1` requires the layer. `RAGTAG_TEST_VULKAN_ADAPTERS` sets the expected number of
//! adapters. Without it and without adapters, tests are skipped with a message.

#![allow(clippy::print_stdout)] // a skip is visible

mod cache;
mod devices;
mod drivers;
mod faults;
mod points;
mod support;
