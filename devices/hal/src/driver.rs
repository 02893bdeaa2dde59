//! The one device that stands on every backend's driver.
//!
//! A backend implements [`Driver`] and [`DriverQueue`], and hands both to [`DriverDevice::open`].
//! Everything else that a [`Device`](crate::Device) owes is here.
//!
//! | file | subject |
//! | --- | --- |
//! | `device.rs` | the device: ids, points, submissions |
//! | `script.rs` | commands whose ids are resolved to memory and kernels |
//! | `memory.rs` | the pool of buffers and the limit on it |
//!
//! This module must not know any API.

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
use crate::lanes::DriverQueue;
use crate::region::HostRegion;
use std::sync::Arc;

/// Memory on a device. Dropping it gives it back.
pub trait Allocation: Send + Sync + 'static {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// The first byte as the host writes it, where the host can.
    fn writable(&self) -> Option<*mut u8> {
        None
    }

    /// The first byte as the host reads it, where the host can and reads fast.
    fn readable(&self) -> Option<*const u8> {
        None
    }

    /// Prepares the memory for its next buffer.
    fn recycle(&mut self) {}
}

/// An API on one opened device. No method waits for work on the device, except where it says so.
pub trait Driver: Send + Sync + Sized + 'static {
    /// Memory of a buffer.
    type Buffer: Allocation;
    /// The driver's hold on a host region: a pin, an import, a shadow.
    type Region: Send + Sync;
    /// An entry of a module.
    type Entry: Send;
    /// A launch with its arguments bound. The spans that it uses are kept beside it.
    type Launch: Send + Sync;
    /// What the driver keeps of a script beside its steps. Dropped before them.
    type Recording: Send + Sync;
    /// A queue of the device.
    type Queue: DriverQueue<Driver = Self>;

    /// # Errors
    /// If the driver has objected to an earlier call.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The heap of the buffers as it is now, regardless of limits.
    ///
    /// # Errors
    /// If the driver refuses.
    fn heap(&self) -> Result<Memory>;

    /// Whether a buffer that is larger than the heap's free bytes is refused before the driver is asked.
    fn trusts_free_bytes(&self) -> bool;

    /// Allocates memory that is there when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); the caller fills in `free`.
    fn allocate(&self, bytes: u64) -> Result<Self::Buffer>;

    /// Loads a module, one entry for each of [`Module::entries`].
    ///
    /// # Errors
    /// As [`Device::create_module`](crate::Device::create_module).
    fn entries(&self, module: &Module) -> Result<Vec<Self::Entry>>;

    /// Binds spans and constants to an entry. Their numbers are those of the entry's ABI.
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

    /// Makes a host region ready for copies.
    ///
    /// # Errors
    /// If copies would not work. A pin that only makes them faster may fail without an error.
    fn register(&self, region: &Arc<HostRegion>) -> Result<Self::Region>;

    /// Appends a step to a script, or the steps that stand for it where the API has no such command.
    ///
    /// # Errors
    /// If the driver refuses.
    fn append(&self, step: Step<Self>, steps: &mut Vec<Step<Self>>) -> Result<()> {
        steps.push(step);
        Ok(())
    }

    /// Prepares steps for the queues: once for each submission of commands, or once for a `program`, which runs on the compute
    /// queue many times.
    ///
    /// # Errors
    /// If the driver refuses.
    fn prepare(&self, steps: &[Step<Self>], program: bool) -> Result<Self::Recording>;
}
