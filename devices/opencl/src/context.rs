//! State that the opened devices of one platform share: an OpenCL context, its compiled programs, and pinned
//! host memory.

use crate::api::{self, Mem, Program};
use crate::probe::{Found, PlatformId};
use opencl3::device::Device;
use ragtag_hal::cache::{Programs, Shelf};
use ragtag_hal::{Pin, PinCache, Pinnable, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// An OpenCL context for some devices of one platform.
pub(crate) struct Context {
    platform: PlatformId,
    devices: Vec<Device>,
    programs: Programs<Arc<Program>>,
    pins: Arc<PinCache<Pinned>>,
    /// The context is the last field, so that it is released last.
    api: api::Context,
}

impl Context {
    /// Creates a context.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(platform: PlatformId, found: &[&Found], shelf: Arc<Shelf>) -> Result<Self> {
        let devices: Vec<Device> = found.iter().map(|found| found.device).collect();
        let api = api::Context::new(platform.raw(), &devices)?;
        let programs = Programs::new(shelf);
        Ok(Self { platform, devices, programs, pins: Arc::default(), api })
    }

    /// Returns true if the context contains all devices in `found`, which belong to one platform.
    pub(crate) fn serves(&self, found: &[&Found]) -> bool {
        let has = |one: &&Found| self.devices.iter().any(|device| device.id() == one.device.id());
        found.iter().all(|one| one.platform == self.platform && has(one))
    }

    pub(crate) fn api(&self) -> &api::Context {
        &self.api
    }

    pub(crate) fn programs(&self) -> &Programs<Arc<Program>> {
        &self.programs
    }

    /// Pins host memory. Returns `None` if the driver cannot pin it. Copies to and from unpinned memory still
    /// work, but are slower.
    pub(crate) fn pin(&self, queue: &Arc<api::Queue>, host: Pinnable) -> Option<Pin<Pinned>> {
        let pin = self.pins.pin(host, |host| Pinned::new(&self.api, queue, host));
        pin.inspect_err(|error| tracing::debug!(%error, "cannot pin host memory")).ok()
    }
}

/// Pinned host memory, which the driver accesses without a staging copy.
pub(crate) struct Pinned {
    queue: Arc<api::Queue>,
    memory: Mem,
    /// Mapped address, which equals the address of the host memory.
    mapped: usize,
    /// Reference that keeps the host memory alive until the driver has unpinned it.
    _host: Pinnable,
}

impl Pinned {
    /// Pins host memory by mapping it. The driver pins host memory while it is mapped, and recognises its
    /// addresses in copies to and from other buffers.
    fn new(context: &api::Context, queue: &Arc<api::Queue>, host: Pinnable) -> Result<Self> {
        let (pointer, bytes) = host.memory();
        // SAFETY: the memory lives as long as the pin. No command uses this buffer, and it stays mapped for
        // its lifetime.
        let memory = unsafe { Mem::over(context, pointer, bytes) }?;
        let mapped = queue.pin(&memory, bytes)? as usize;
        Ok(Self { queue: Arc::clone(queue), memory, mapped, _host: host })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let unpinned =
            self.queue.unpin(&self.memory, self.mapped as *mut c_void).and_then(|()| self.queue.finish());
        if let Err(error) = unpinned {
            tracing::debug!(%error, "cannot unpin host memory");
        }
    }
}
