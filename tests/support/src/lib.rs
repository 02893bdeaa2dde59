//! Support for the tests of all crates: golden data, counted skips, seeds, a TCP proxy, and tests in child
//! processes.
//!
//! This crate is not published. It depends on no other crate of the workspace, so that the tests of every
//! crate can use it.

#![allow(clippy::print_stdout)] // Skips and the output of child processes are visible with `--nocapture`.

mod child;
mod data;
mod environment;
mod proxy;
mod skips;

pub use child::{Child, child};
pub use data::{golden, golden_bytes, model, unpacked};
pub use environment::clean_environment;
pub use proxy::Proxy;
pub use skips::{Skip, driver, record, recorded};

/// Returns the seed for random test inputs. The seed is the value of `RAGTAG_TEST_SEED`, or 0 if the variable is
/// not set. Which tests run does not depend on it.
///
/// # Panics
/// Panics if the variable is set but is not a number.
#[track_caller]
pub fn seed() -> u64 {
    std::env::var("RAGTAG_TEST_SEED").map_or(0, |seed| seed.parse().expect("RAGTAG_TEST_SEED is a number"))
}

/// Returns whether the tests are those of `cargo xtask nightly`: whether `RAGTAG_TEST_ALL` is set. Otherwise they are
/// the same for each commit, and each test says what it leaves out. docs/testing.md sums it up.
pub fn nightly() -> bool {
    std::env::var_os("RAGTAG_TEST_ALL").is_some()
}
