//! What a stand-in pretends, from variables.

use std::env;

/// The architecture that devices have unless they are told another: with waves of 32 work items and without matrix
/// instructions, since not every engine has something in place of AMD's.
pub const ARCHITECTURE: &str = "gfx1030";

/// The architecture to show.
pub(crate) fn architecture() -> String {
    env::var("RAGTAG_FAKE_ARCH").unwrap_or_else(|_| ARCHITECTURE.into())
}

/// Work items of a wave of that architecture: 64 until RDNA.
pub(crate) fn wave_items() -> i32 {
    if architecture().starts_with("gfx9") { 64 } else { 32 }
}

/// Whether the compiler is to end the process.
pub(crate) fn aborts() -> bool {
    env::var_os("RAGTAG_FAKE_ABORT").is_some()
}

/// Which of so many devices are shown, in which order.
pub(crate) fn visible(devices: usize) -> Vec<usize> {
    let Ok(list) = env::var("HIP_VISIBLE_DEVICES") else { return (0..devices).collect() };
    // The list ends where it makes no sense.
    list.split(',').map_while(|one| one.trim().parse().ok().filter(|one| *one < devices)).collect()
}
