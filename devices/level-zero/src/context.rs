//! State that the opened devices of one driver share: a context, compiled programs, and registered host memory.

use crate::api::{self, Driver, Importer};
use crate::program::Program;
use ragtag_hal::cache::{Programs, Shelf};
use ragtag_hal::{Pin, PinCache, Pinnable, Result};
use std::sync::Arc;

/// A context for all devices of a driver.
pub(crate) struct Context {
    driver: Driver,
    programs: Programs<Arc<Program>>,
    pins: Arc<PinCache<Registered>>,
    importer: Option<Importer>,
    /// The context is the last field, so that it is destroyed last.
    api: Arc<api::Context>,
}

impl Context {
    /// Creates a context.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(driver: Driver, shelf: Arc<Shelf>) -> Result<Self> {
        let (api, importer) = (driver.context()?, driver.importer());
        Ok(Self { driver, programs: Programs::new(shelf), pins: Arc::default(), importer, api })
    }

    /// Returns true if the context belongs to this driver.
    pub(crate) fn is_of(&self, driver: Driver) -> bool {
        self.driver == driver
    }

    pub(crate) fn api(&self) -> &Arc<api::Context> {
        &self.api
    }

    pub(crate) fn programs(&self) -> &Programs<Arc<Program>> {
        &self.programs
    }

    /// Registers host memory with the driver. Returns `None` if the driver cannot register it. Copies to and
    /// from other memory still work, but are slower.
    pub(crate) fn pin(&self, host: Pinnable) -> Option<Pin<Registered>> {
        let importer = self.importer?;
        let pin = self.pins.pin(host, |host| Registered::new(importer, host));
        pin.inspect_err(|error| tracing::debug!(%error, "cannot register host memory")).ok()
    }
}

/// Registered host memory, which the device accesses directly.
pub(crate) struct Registered {
    importer: Importer,
    /// Reference that keeps the memory alive until the registration has ended.
    host: Pinnable,
}

impl Registered {
    fn new(importer: Importer, host: Pinnable) -> Result<Self> {
        let (pointer, bytes) = host.memory();
        // SAFETY: the value keeps the memory allocated until it ends the registration.
        unsafe { importer.import(pointer, bytes) }?;
        Ok(Self { importer, host })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (pointer, _) = self.host.memory();
        // SAFETY: the memory is registered. Enqueued work keeps the pins of its memory alive until it has
        // ended.
        if let Err(error) = unsafe { self.importer.release(pointer) } {
            tracing::debug!(%error, "cannot end the registration of host memory");
        }
    }
}
