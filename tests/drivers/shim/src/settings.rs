//! Reads the reported device properties from environment variables.

use std::env;

/// Default device architecture. It has waves of 32 work items and no matrix instructions, because some
/// engines cannot emulate AMD's matrix instructions.
pub const ARCHITECTURE: &str = "gfx1030";

/// Returns the architecture that all devices report.
pub(crate) fn architecture() -> String {
    env::var("RAGTAG_FAKE_ARCH").unwrap_or_else(|_| ARCHITECTURE.into())
}

/// Returns the number of work items per wave. It is 64 for architectures before RDNA.
pub(crate) fn wave_items() -> i32 {
    if architecture().starts_with("gfx9") { 64 } else { 32 }
}

/// Returns whether the compiler aborts the process.
pub(crate) fn aborts() -> bool {
    env::var_os("RAGTAG_FAKE_ABORT").is_some()
}

/// Returns whether each device can access the memory of the others, according to the driver.
pub(crate) fn has_peers() -> bool {
    env::var_os("RAGTAG_FAKE_PEERS").is_some()
}

/// Returns whether the driver refuses to enable the access to peers.
pub(crate) fn refuses_peers() -> bool {
    env::var("RAGTAG_FAKE_PEERS").is_ok_and(|peers| peers == "refused")
}

/// Returns the indices of the visible devices in the order of `HIP_VISIBLE_DEVICES`. `devices` is the total
/// number of devices.
pub(crate) fn visible(devices: usize) -> Vec<usize> {
    let Ok(list) = env::var("HIP_VISIBLE_DEVICES") else { return (0..devices).collect() };
    // As in HIP, the list ends at the first invalid entry.
    list.split(',').map_while(|one| one.trim().parse().ok().filter(|one| *one < devices)).collect()
}
