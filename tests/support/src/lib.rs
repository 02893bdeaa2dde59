//! Support for the tests of all crates: golden data, counted skips, seeds, and tests in child processes.
//!
//! This crate is not published. It depends on no other crate of the workspace, so that the tests of every
//! crate can use it.

#![allow(clippy::print_stdout)] // Skips and the output of child processes are visible with `--nocapture`.

mod child;
mod data;
mod skips;

pub use child::{Child, child};
pub use data::{golden, model};
pub use skips::{Skip, driver, record, recorded};

/// Returns the seed for all test inputs that vary from commit to commit. The seed is the value of
/// `RAGTAG_TEST_SEED`, or 0 if the variable is not set.
///
/// # Panics
/// Panics if the variable is set but is not a number.
#[track_caller]
pub fn seed() -> u64 {
    std::env::var("RAGTAG_TEST_SEED").map_or(0, |seed| seed.parse().expect("RAGTAG_TEST_SEED is a number"))
}

/// Returns one of `of` shares of the items. An increment of `turn` or of `RAGTAG_TEST_SEED` selects the next
/// share. If `RAGTAG_TEST_ALL` is set, returns all items.
///
/// # Panics
/// Panics if `RAGTAG_TEST_SEED` is set but is not a number.
#[track_caller]
pub fn share<T>(items: impl IntoIterator<Item = T>, of: usize, turn: u32) -> Vec<T> {
    let of = if std::env::var_os("RAGTAG_TEST_ALL").is_some() { 1 } else { of };
    let first = (u64::from(turn) + seed() % of as u64) % of as u64;
    items.into_iter().skip(first as usize).step_by(of).collect()
}
