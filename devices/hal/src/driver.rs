//! The common device implementation above every backend's driver.
//!
//! A backend implements [`Driver`] and [`DriverQueue`], and passes both to [`DriverDevice::open`]. The rest
//! of [`Device`](crate::Device) is implemented here.
//!
//! | file | subject |
//! | --- | --- |
//! | `device.rs` | the device: ids, points, submissions |
//! | `script.rs` | commands whose ids are resolved to memory and kernels |
//! | `memory.rs` | the pool of buffers and the limit on it |
//!
//! Knows no API.

mod device;
mod memory;
mod script;
#[cfg(test)]
mod tests;

pub use device::DriverDevice;
pub use script::{HostSpan, Launch, Registered, Script, Span, Step, grid_parts};

use crate::backend::Memory;
use crate::command::Module;
use crate::error::Result;
use crate::queues::DriverQueue;
use crate::region::HostRegion;
use std::sync::Arc;

/// Memory on a device, freed on drop.
pub trait Allocation: Send + Sync + 'static {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Returns a pointer for host writes, if the host can write the memory.
    fn writable(&self) -> Option<*mut u8> {
        None
    }

    /// Returns a pointer for host reads, if the host can read the memory fast.
    fn readable(&self) -> Option<*const u8> {
        None
    }

    /// Prepares the memory for its next buffer.
    fn recycle(&mut self) {}
}

/// An API on one opened device. Methods do not wait for work on the device unless their documentation says
/// so.
pub trait Driver: Send + Sync + Sized + 'static {
    /// Memory of a buffer.
    type Buffer: Allocation;
    /// Driver state of a registered host region: a pin, an import or a shadow copy.
    type Region: Send + Sync;
    /// An entry of a module.
    type Entry: Send;
    /// A launch with bound arguments. The caller keeps the spans that it uses.
    type Launch: Send + Sync;
    /// Driver state of a script beside its steps. Dropped before them.
    type Recording: Send + Sync;
    /// A queue of the device.
    type Queue: DriverQueue<Driver = Self>;

    /// Reports objections that the driver raised since an earlier call.
    ///
    /// # Errors
    /// If the driver raised one.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the current state of the heap of the buffers, regardless of limits.
    ///
    /// # Errors
    /// If the driver refuses.
    fn heap(&self) -> Result<Memory>;

    /// Returns true if a buffer larger than the heap's free bytes is refused without asking the driver.
    fn trusts_free_bytes(&self) -> bool;

    /// Allocates memory. The memory is committed when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory). The caller fills in `free`.
    fn allocate(&self, bytes: u64) -> Result<Self::Buffer>;

    /// Loads a module, one entry for each of [`Module::entries`].
    ///
    /// # Errors
    /// As [`Device::create_module`](crate::Device::create_module).
    fn entries(&self, module: &Module) -> Result<Vec<Self::Entry>>;

    /// Binds spans and constants to an entry. Their counts match the entry's ABI.
    ///
    /// # Errors
    /// If the driver refuses.
    fn launch(
        &self,
        entry: &Self::Entry,
        spans: &[Span<Self::Buffer>],
        constants: Vec<u32>,
        grid: [u32; 3],
    ) -> Result<Self::Launch>;

    /// Prepares a host region for copies.
    ///
    /// # Errors
    /// If copies would not work. A pin that only speeds up copies may fail without an error.
    fn register(&self, region: &Arc<HostRegion>) -> Result<Self::Region>;

    /// Appends a step to a script, or its replacement steps if the API has no such command.
    ///
    /// # Errors
    /// If the driver refuses.
    fn append(&self, step: Step<Self>, steps: &mut Vec<Step<Self>>) -> Result<()> {
        steps.push(step);
        Ok(())
    }

    /// Prepares steps for the queues: for one submission of commands, or for a `program` that runs on the
    /// compute queue many times.
    ///
    /// # Errors
    /// If the driver refuses.
    fn prepare(&self, steps: &[Step<Self>], program: bool) -> Result<Self::Recording>;
}
