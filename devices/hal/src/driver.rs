//! The device implementation that all backends share. It runs on top of a backend's driver.
//!
//! A backend implements [`Driver`] and [`DriverQueue`], and passes both to [`DriverDevice::open`]. This
//! module implements the rest of [`Device`](crate::Device).
//!
//! | file | subject |
//! | --- | --- |
//! | `device.rs` | the device: IDs, points, submissions |
//! | `script.rs` | commands whose IDs are resolved to memory and kernels |
//! | `memory.rs` | the buffer pool and its size limit |
//!
//! This module is independent of any API.

mod device;
mod memory;
mod script;
#[cfg(test)]
mod tests;

pub use device::DriverDevice;
pub use script::{HostSpan, Launch, Registered, Script, Span, Step, grid_parts};

use crate::backend::{Memory, SharedMemory, SharedSemaphore};
use crate::command::Module;
use crate::error::{Error, Result};
use crate::queues::DriverQueue;
use crate::region::HostRegion;
use std::sync::Arc;

/// Memory on a device, freed on drop.
pub trait Allocation: Send + Sync + 'static {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Returns a pointer through which the host can write the memory, or `None` if the host has no access.
    fn writable(&self) -> Option<*mut u8> {
        None
    }

    /// Returns a pointer through which the host can read the memory quickly, or `None` if it cannot.
    fn readable(&self) -> Option<*const u8> {
        None
    }

    /// Prepares the memory for reuse by another buffer.
    fn recycle(&mut self) {}
}

/// Access to one opened device through its API. Methods do not wait for work on the device unless their
/// documentation says so.
pub trait Driver: Send + Sync + Sized + 'static {
    /// Memory of a buffer.
    type Buffer: Allocation;
    /// Driver state of a registered host region: a pin, an import or a shadow copy.
    type Region: Send + Sync;
    /// A loaded entry of a module.
    type Entry: Send;
    /// A kernel launch with bound arguments. The caller keeps the bound spans alive.
    type Launch: Send + Sync;
    /// State that the driver keeps for a script in addition to its steps. It is dropped before the steps.
    type Recording: Send + Sync;
    /// A semaphore that this device shares with another device. `Infallible` if the API has none.
    type Semaphore: Send + Sync;
    /// A queue of the device.
    type Queue: DriverQueue<Driver = Self>;

    /// Checks for errors that the driver does not report through return codes, such as the messages of a
    /// validation layer.
    ///
    /// # Errors
    /// Returns an error if the driver has reported an error.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the current size and free bytes of the heap from which buffers are allocated. Ignores the
    /// user's limits.
    ///
    /// # Errors
    /// Returns an error if a driver call fails.
    fn heap(&self) -> Result<Memory>;

    /// Returns true if the reported free bytes of the heap are reliable. If so, the device rejects a buffer
    /// that is larger than that without calling the driver.
    fn trusts_free_bytes(&self) -> bool;

    /// Allocates memory and commits it before the call returns.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] if the device has too little memory. The
    /// caller fills in the field `free` of the error.
    fn allocate(&self, bytes: u64) -> Result<Self::Buffer>;

    /// Allocates memory that [`export`](Self::export) accepts.
    ///
    /// # Errors
    /// Returns the errors of [`allocate`](Self::allocate). Returns [`Error::Unsupported`] if the API cannot
    /// share memory.
    fn allocate_shared(&self, bytes: u64) -> Result<Self::Buffer> {
        self.allocate(bytes)
    }

    /// Returns the memory of a buffer in a form that [`import`](Self::import) of another device accepts.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot share the memory.
    fn export(&self, _buffer: &Arc<Self::Buffer>) -> Result<SharedMemory> {
        Err(Error::Unsupported { what: "sharing buffers with other devices".into() })
    }

    /// Returns a buffer over memory that another device has exported. The caller does not import the same
    /// handle again while it holds the buffer.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot import the memory.
    fn import(&self, _memory: &SharedMemory) -> Result<Self::Buffer> {
        Err(Error::Unsupported { what: "importing buffers of other devices".into() })
    }

    /// Creates a semaphore that [`import_semaphore`](Self::import_semaphore) of this device and of another
    /// device accepts.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot share semaphores.
    fn create_semaphore(&self) -> Result<SharedSemaphore> {
        Err(Error::Unsupported { what: "sharing semaphores with other devices".into() })
    }

    /// Returns this device's handle of a shared semaphore.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot use the semaphore.
    fn import_semaphore(&self, _semaphore: &SharedSemaphore) -> Result<Self::Semaphore> {
        Err(Error::Unsupported { what: "sharing semaphores with other devices".into() })
    }

    /// Loads a module. Returns one loaded entry for each of [`Module::entries`].
    ///
    /// # Errors
    /// Returns the errors of [`Device::create_module`](crate::Device::create_module).
    fn entries(&self, module: &Module) -> Result<Vec<Self::Entry>>;

    /// Binds spans and constants to an entry. The caller has checked that the number of spans and the number
    /// of constants match the entry's ABI.
    ///
    /// # Errors
    /// Returns an error if a driver call fails.
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
    /// Returns an error if copies to and from the region are impossible. If pinning only speeds up copies, a
    /// failure to pin is not an error.
    fn register(&self, region: &Arc<HostRegion>) -> Result<Self::Region>;

    /// Appends `step` to the steps of a script. If the API has no such command, appends other steps that have
    /// the same effect.
    ///
    /// # Errors
    /// Returns an error if a driver call fails.
    fn append(&self, step: Step<Self>, steps: &mut Vec<Step<Self>>) -> Result<()> {
        steps.push(step);
        Ok(())
    }

    /// Prepares steps for execution by the queues. If `program` is true, the steps will run many times on the
    /// compute queue. Otherwise they will run once.
    ///
    /// # Errors
    /// Returns an error if a driver call fails.
    fn prepare(&self, steps: &[Step<Self>], program: bool) -> Result<Self::Recording>;
}
