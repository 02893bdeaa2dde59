//! What the Vulkan backend owes to its users, on every Vulkan device of this machine.
//!
//! The validation layer, where it is installed, looks at every call, and one objection fails the test; with
//! `RAGTAG_VULKAN_VALIDATION=1` it must be there.
//! `RAGTAG_TEST_VULKAN_ADAPTERS` says how many adapters there must be; without any the tests are skipped visibly.

#![allow(clippy::print_stdout)] // a skip is visible

mod cache;
mod devices;
mod drivers;
mod faults;
mod points;
mod support;
