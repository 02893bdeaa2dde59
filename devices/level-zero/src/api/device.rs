//! Drivers and devices, and queries for their properties.

use super::types::*;
use super::{Api, Context, call, call_optional, list, until_zero};
use ragtag_hal::{PciAddress, Result};
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

/// Signature of Intel's functions that register host memory and end the registration.
type ImportFn = unsafe extern "C" fn(Handle, *mut c_void, usize) -> u32;
type ReleaseFn = unsafe extern "C" fn(Handle, *mut c_void) -> u32;

/// A Level Zero driver, which may have several devices.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    pub(crate) api: &'static Api,
    pub(super) handle: Handle,
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Driver {
    /// Returns the version of the API that the driver implements: major and minor.
    pub(crate) fn api_version(self) -> Result<(u32, u32)> {
        let mut version = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self.api, zeDriverGetApiVersion(self.handle, &raw mut version)) }?;
        Ok((version >> 16, version & 0xffff))
    }

    pub(crate) fn properties(self) -> Result<DriverProperties> {
        let mut properties = DriverProperties::default();
        // SAFETY: the call fills the structure.
        unsafe { call!(self.api, zeDriverGetProperties(self.handle, &raw mut properties)) }?;
        Ok(properties)
    }

    /// Returns the names of the driver's extensions.
    pub(crate) fn extensions(self) -> Vec<String> {
        let all = list!(self.api, zeDriverGetExtensionProperties(self.handle), Extension::default());
        all.unwrap_or_default().iter().map(|extension| until_zero(&extension.name)).collect()
    }

    pub(crate) fn devices(self) -> Result<Vec<Device>> {
        let handles = list!(self.api, zeDeviceGet(self.handle), Handle::NULL)?;
        Ok(handles.into_iter().map(|handle| Device { api: self.api, handle }).collect())
    }

    fn extension_function(self, name: &CStr) -> Option<*mut c_void> {
        let mut function = ptr::null_mut();
        // SAFETY: the name ends with a zero, and the call writes one pointer.
        let found = unsafe {
            call!(
                self.api,
                zeDriverGetExtensionFunctionAddress(self.handle, name.as_ptr(), &raw mut function)
            )
        };
        found.ok().and(Some(function)).filter(|function| !function.is_null())
    }

    /// Returns Intel's functions that register host memory, or `None` if the driver lacks them.
    pub(crate) fn importer(self) -> Option<Importer> {
        let import = self.extension_function(c"zexDriverImportExternalPointer")?;
        let release = self.extension_function(c"zexDriverReleaseImportedPointer")?;
        let mut driver = Handle::NULL;
        // The functions are the driver's own. They do not know the handles of the loader.
        // SAFETY: the call writes one handle.
        unsafe {
            call_optional!(
                self.api,
                zelLoaderTranslateHandle(value::DRIVER_HANDLE, self.handle, &raw mut driver)
            )
        }
        .ok()?;
        // SAFETY: Intel's driver declares both functions with these signatures.
        let (import, release) = unsafe {
            (
                std::mem::transmute::<*mut c_void, ImportFn>(import),
                std::mem::transmute::<*mut c_void, ReleaseFn>(release),
            )
        };
        Some(Importer { driver, import, release })
    }

    /// Creates a context that contains all devices of the driver.
    pub(crate) fn context(self) -> Result<Arc<Context>> {
        let (desc, mut handle) = (ContextDesc::default(), Handle::NULL);
        // SAFETY: the call reads the description and writes one handle.
        unsafe { call!(self.api, zeContextCreate(self.handle, &raw const desc, &raw mut handle)) }?;
        Ok(Context::of(self.api, handle))
    }
}

/// Intel's functions that register host memory with a driver. Copies to and from registered memory need no
/// staging copy.
#[derive(Clone, Copy)]
pub(crate) struct Importer {
    driver: Handle,
    import: ImportFn,
    release: ReleaseFn,
}

impl Importer {
    /// Registers host memory.
    ///
    /// # Safety
    /// The memory stays allocated until [`Importer::release`].
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) unsafe fn import(self, pointer: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { (self.import)(self.driver, pointer.cast(), bytes) };
        super::check("zexDriverImportExternalPointer", code)
    }

    /// Ends a registration.
    ///
    /// # Safety
    /// The memory was registered, and no unfinished work uses it.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) unsafe fn release(self, pointer: *mut u8) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { (self.release)(self.driver, pointer.cast()) };
        super::check("zexDriverReleaseImportedPointer", code)
    }
}

/// A device of a driver.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) api: &'static Api,
    pub(crate) handle: Handle,
}

/// Defines queries for structures of properties.
macro_rules! properties {
    ($($name:ident, $function:ident -> $properties:ty;)*) => {$(
        pub(crate) fn $name(self) -> Result<$properties> {
            let mut properties = <$properties>::default();
            // SAFETY: the call fills the structure.
            unsafe { call!(self.api, $function(self.handle, &raw mut properties)) }?;
            Ok(properties)
        }
    )*};
}

impl Device {
    properties! {
        properties, zeDeviceGetProperties -> DeviceProperties;
        compute_properties, zeDeviceGetComputeProperties -> ComputeProperties;
        memory_access, zeDeviceGetMemoryAccessProperties -> MemoryAccessProperties;
        external_memory, zeDeviceGetExternalMemoryProperties -> ExternalMemoryProperties;
    }

    /// Returns the properties of modules. If `asks_dot` is true, which the driver must support, also returns the
    /// flags of Intel's dot product instructions.
    pub(crate) fn module_properties(self, asks_dot: bool) -> Result<(ModuleProperties, u32)> {
        let mut dot = DotProperties::default();
        let next = if asks_dot { (&raw mut dot).cast_const().cast() } else { ptr::null() };
        let mut properties = ModuleProperties { next, ..ModuleProperties::default() };
        // SAFETY: the call fills both structures.
        unsafe { call!(self.api, zeDeviceGetModuleProperties(self.handle, &raw mut properties)) }?;
        Ok((properties, dot.flags))
    }

    pub(crate) fn queue_groups(self) -> Result<Vec<QueueGroupProperties>> {
        let one = QueueGroupProperties::default();
        list!(self.api, zeDeviceGetCommandQueueGroupProperties(self.handle), one)
    }

    pub(crate) fn memories(self) -> Result<Vec<MemoryProperties>> {
        list!(self.api, zeDeviceGetMemoryProperties(self.handle), MemoryProperties::default())
    }

    /// Returns the tiles of a card as devices of their own. The list is empty for a card with one tile, and for
    /// a tile.
    pub(crate) fn tiles(self) -> Result<Vec<Self>> {
        let handles = list!(self.api, zeDeviceGetSubDevices(self.handle), Handle::NULL)?;
        Ok(handles.into_iter().map(|handle| Self { api: self.api, handle }).collect())
    }

    /// Returns true if, according to the driver, the device can access the memory of a peer.
    pub(crate) fn reaches(self, peer: Self) -> bool {
        let mut can = 0;
        // SAFETY: the call writes one byte.
        let asked = unsafe { call!(self.api, zeDeviceCanAccessPeer(self.handle, peer.handle, &raw mut can)) };
        asked.is_ok() && can != 0
    }

    /// Checks whether the device still works.
    ///
    /// # Errors
    /// Returns [`Error::Lost`](ragtag_hal::Error::Lost) if the device is lost.
    pub(crate) fn status(self) -> Result<()> {
        // SAFETY: the handle is valid.
        unsafe { call!(self.api, zeDeviceGetStatus(self.handle)) }
    }

    /// Returns the current time of the device's timer, in cycles.
    pub(crate) fn timer(self) -> Result<u64> {
        let (mut host, mut timer) = (0, 0);
        // SAFETY: the call writes two numbers.
        unsafe {
            call_optional!(self.api, zeDeviceGetGlobalTimestamps(self.handle, &raw mut host, &raw mut timer))
        }?;
        Ok(timer)
    }

    /// Returns the device's PCI address, if the driver reports it.
    pub(crate) fn pci(self) -> Option<PciAddress> {
        let mut pci = PciProperties::default();
        // SAFETY: the call fills the structure.
        unsafe { call_optional!(self.api, zeDevicePciGetPropertiesExt(self.handle, &raw mut pci)) }.ok()?;
        let byte = |word: u32| u8::try_from(word).ok();
        let PciProperties { domain, bus, device, function, .. } = pci;
        Some(PciAddress { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
    }
}
