//! State that the opened devices of one driver share: a context, compiled programs, and registered host memory.

use crate::api::{self, Driver, Importer};
use crate::program::Program;
use ragtag_hal::cache::{Programs, Shelf};
use ragtag_hal::{HostPages, HostRegion, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A context for all devices of a driver.
pub(crate) struct Context {
    driver: Driver,
    programs: Programs<Arc<Program>>,
    /// Registered host memory, keyed by address. Memory that two devices register is registered only once.
    pins: Mutex<HashMap<usize, Weak<Pin>>>,
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
        Ok(Self { driver, programs: Programs::new(shelf), pins: Mutex::default(), importer, api })
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
    pub(crate) fn pin(&self, host: Pinnable) -> Option<Arc<Pin>> {
        let importer = self.importer?;
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.retain(|_, pin| pin.strong_count() > 0);
        let (pointer, _) = host.memory();
        if let Some(pin) = pins.get(&(pointer as usize)).and_then(Weak::upgrade) {
            return Some(pin);
        }
        let pin = Pin::new(importer, host);
        let refused = |error: &ragtag_hal::Error| tracing::debug!(%error, "cannot register host memory");
        let pin = Arc::new(pin.inspect_err(refused).ok()?);
        pins.insert(pointer as usize, Arc::downgrade(&pin));
        Some(pin)
    }
}

/// Host memory that can be registered.
pub(crate) enum Pinnable {
    /// A region for uploads and downloads.
    Region(Arc<HostRegion>),
    /// Imported pages.
    Pages(Arc<HostPages>),
}

impl Pinnable {
    /// Returns a pointer to the first byte, and the size in bytes.
    fn memory(&self) -> (*mut u8, usize) {
        match self {
            Self::Region(region) => (region.as_ptr(), region.bytes()),
            Self::Pages(pages) => (pages.pointer(), pages.mapped_bytes()),
        }
    }
}

/// Registered host memory, which the device accesses directly.
pub(crate) struct Pin {
    importer: Importer,
    /// Reference that keeps the memory alive until the registration has ended.
    host: Pinnable,
}

impl Pin {
    fn new(importer: Importer, host: Pinnable) -> Result<Self> {
        let (pointer, bytes) = host.memory();
        // SAFETY: the value keeps the memory allocated until it ends the registration.
        unsafe { importer.import(pointer, bytes) }?;
        Ok(Self { importer, host })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let (pointer, _) = self.host.memory();
        // SAFETY: the memory is registered. Enqueued work keeps the pins of its memory alive until it has
        // ended.
        if let Err(error) = unsafe { self.importer.release(pointer) } {
            tracing::debug!(%error, "cannot end the registration of host memory");
        }
    }
}
