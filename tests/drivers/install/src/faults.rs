//! Controls the faults of a device: the device is lost, or its allocations fail.
//!
//! The layer over Vulkan's drivers and the Level Zero driver export the same functions. The test opens their
//! library and calls the functions.

use crate::library;
use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char};

/// Kind of call at which a device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAt {
    /// Submission of work: `vkQueueSubmit` and its variants, execution of a Level Zero list, or an append to an
    /// immediate list.
    Submit,
    /// `vkWaitSemaphores` and its variants, or the execution of a Level Zero submission.
    Wait,
}

/// Handle through which a test controls a device's faults. Vulkan's devices are numbered in the order in which
/// this process opens them, and Level Zero's in the order in which the driver lists them.
#[derive(Debug)]
pub struct Faults(Library);

impl Faults {
    /// Opens the library of a package, which the loader has loaded as well.
    pub(crate) fn load(package: &str) -> Self {
        // SAFETY: the library was built for this test and has no initialisers.
        Self(unsafe { Library::new(library(package)) }.expect("the library is built"))
    }

    /// Returns the number of devices that this process has opened so far, which is also the number of the
    /// next device. For Level Zero, returns the number of the first device.
    pub fn opened(&self) -> u32 {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let opened: Symbol<'_, unsafe extern "C" fn() -> u32> = self.function("faults_opened");
            opened()
        }
    }

    /// Loses a device at a call of kind `at`, after `passes` calls of this kind have
    /// succeeded.
    pub fn lose(&self, device: u32, at: LostAt, passes: u64) {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let lose: Symbol<'_, unsafe extern "C" fn(u32, u32, u64)> = self.function("faults_lose");
            lose(device, at as u32, passes);
        }
    }

    /// Limits the total size of a device's allocations to `bytes` from now on, regardless of the heap size.
    /// If `bytes` is 0, the creation of Vulkan's command buffers and pipelines fails as well.
    pub fn limit(&self, device: u32, bytes: u64) {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let limit: Symbol<'_, unsafe extern "C" fn(u32, u64)> = self.function("faults_limit");
            limit(device, bytes);
        }
    }

    /// Returns the number of bytes that are allocated on a device. If the device is closed, these bytes were
    /// leaked.
    pub fn held(&self, device: u32) -> u64 {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let held: Symbol<'_, unsafe extern "C" fn(u32) -> u64> = self.function("faults_held");
            held(device)
        }
    }

    /// Returns whether a device is open.
    pub fn is_open(&self, device: u32) -> bool {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let is_open: Symbol<'_, unsafe extern "C" fn(u32) -> bool> = self.function("faults_is_open");
            is_open(device)
        }
    }

    /// Returns the number of calls of a Level Zero function so far, of all devices.
    ///
    /// # Panics
    /// Panics for the layer over Vulkan's drivers, which counts no calls.
    pub fn calls(&self, name: &CStr) -> u64 {
        // SAFETY: the type is that of the declaration in the driver, and the name ends with zero.
        unsafe {
            let calls: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> = self.function("faults_calls");
            calls(name.as_ptr())
        }
    }

    /// Returns the number of Level Zero calls that a real driver may answer with a crash. The driver prints
    /// them.
    ///
    /// # Panics
    /// As for [`Faults::calls`].
    pub fn misuses(&self) -> u64 {
        // SAFETY: the type is that of the declaration in the driver.
        unsafe {
            let misuses: Symbol<'_, unsafe extern "C" fn() -> u64> = self.function("faults_misuses");
            misuses()
        }
    }

    /// # Safety
    /// The library's function of this name must have type `F`.
    unsafe fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.0.get(name) }.expect("the library has its functions")
    }
}
