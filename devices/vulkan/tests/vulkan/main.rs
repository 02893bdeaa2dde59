//! Tests of the Vulkan backend on every Vulkan device of the machine.
//!
//! If the validation layer is installed, it checks every call, and a test fails as soon as the layer reports
//! a message. `RAGTAG_VULKAN_VALIDATION=1` requires the layer. `RAGTAG_TEST_VULKAN_ADAPTERS` sets the
//! expected number of adapters. If the variable is not set and there is no adapter, the tests report that
//! they were skipped.

#![allow(clippy::print_stdout)] // a skip is visible

mod cache;
mod devices;
mod drivers;
mod faults;
mod points;
mod shared;
mod support;
