//! Owned objects: contexts, memory, events, modules and kernels.
//!
//! This module does not depend on command lists.

use super::types::*;
use super::{Api, Device, call, until_zero};
use crate::error::{MODULE_BUILD_FAILURE, NOT_READY, SUCCESS, failure};
use ragtag_hal::{Error, Result};
use std::ffi::{CStr, CString, c_void};
#[cfg(unix)]
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// A context, which contains all devices of a driver.
pub(crate) struct Context {
    pub(super) api: &'static Api,
    pub(super) handle: Handle,
}

impl Context {
    pub(super) fn of(api: &'static Api, handle: Handle) -> Arc<Self> {
        Arc::new(Self { api, handle })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all objects of the context hold a reference to it, so none is left.
        logged(unsafe { call!(self.api, zeContextDestroy(self.handle)) });
    }
}

/// Logs a failed destruction.
pub(super) fn logged(destroyed: Result<()>) {
    if let Err(error) = destroyed {
        tracing::debug!(%error, "cannot destroy an object");
    }
}

/// Returns a pointer to `limits` if `relaxed` is true, and otherwise the pointer that `limits` contains.
fn chained(limits: &RelaxedLimits, relaxed: bool) -> *const c_void {
    if relaxed { ptr::from_ref(limits).cast() } else { limits.next }
}

/// Unified shared memory.
pub(crate) struct UsmMemory {
    pointer: usize,
    context: Arc<Context>,
}

impl UsmMemory {
    /// Allocates device memory. If `relaxed` is true, the size may exceed the device's limit for a single
    /// allocation.
    pub(crate) fn device(
        context: &Arc<Context>,
        device: Device,
        bytes: usize,
        relaxed: bool,
    ) -> Result<Self> {
        // SAFETY: there is no extension structure.
        unsafe { Self::extended(context, device, bytes, relaxed, ptr::null()) }
    }

    /// Allocates device memory that can be exported as a dma-buf.
    #[cfg(unix)]
    pub(crate) fn exportable(
        context: &Arc<Context>,
        device: Device,
        bytes: usize,
        relaxed: bool,
    ) -> Result<Self> {
        let export = ExportDesc { flags: value::DMA_BUF, ..ExportDesc::default() };
        // SAFETY: the structure extends the description of an allocation.
        unsafe { Self::extended(context, device, bytes, relaxed, ptr::from_ref(&export).cast()) }
    }

    /// Imports the first bytes of a dma-buf.
    #[cfg(unix)]
    pub(crate) fn import(
        context: &Arc<Context>,
        device: Device,
        bytes: usize,
        relaxed: bool,
        fd: OwnedFd,
    ) -> Result<Self> {
        let import = ImportFd { flags: value::DMA_BUF, fd: fd.as_raw_fd(), ..ImportFd::default() };
        // SAFETY: the structure extends the description of an allocation.
        let imported =
            unsafe { Self::extended(context, device, bytes, relaxed, ptr::from_ref(&import).cast()) }?;
        // A successful import has taken the file descriptor: Intel's driver closes it with the memory.
        let _ = fd.into_raw_fd();
        Ok(imported)
    }

    /// Exports memory from [`UsmMemory::exportable`] as a dma-buf.
    #[cfg(unix)]
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let (context, pointer) = (&self.context, self.pointer().cast_const().cast());
        let mut export = ExportFd { flags: value::DMA_BUF, fd: -1, ..ExportFd::default() };
        let next = (&raw mut export).cast_const().cast();
        let mut properties = AllocationProperties { next, ..AllocationProperties::default() };
        let (to, no_device) = (&raw mut properties, ptr::null_mut());
        // SAFETY: the call fills both structures.
        unsafe { call!(context.api, zeMemGetAllocProperties(context.handle, pointer, to, no_device)) }?;
        if export.fd < 0 {
            return Err(Error::Unsupported { what: "exporting this memory as a dma-buf".into() });
        }
        // SAFETY: the driver returns a new file descriptor, which belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(export.fd) })
    }

    /// Allocates or imports device memory.
    ///
    /// # Safety
    /// `next` is null or points to a structure that may extend `ze_device_mem_alloc_desc_t`.
    unsafe fn extended(
        context: &Arc<Context>,
        device: Device,
        bytes: usize,
        relaxed: bool,
        next: *const c_void,
    ) -> Result<Self> {
        let limits = RelaxedLimits { flags: value::MAX_SIZE, next, ..RelaxedLimits::default() };
        let desc = DeviceMemoryDesc { next: chained(&limits, relaxed), ..DeviceMemoryDesc::default() };
        let mut pointer = ptr::null_mut();
        // SAFETY: the call reads the descriptions, which the caller guarantees, and writes one pointer.
        unsafe {
            call!(
                context.api,
                zeMemAllocDevice(
                    context.handle,
                    &raw const desc,
                    bytes,
                    ALIGNMENT,
                    device.handle,
                    &raw mut pointer
                )
            )
        }?;
        Ok(Self { pointer: pointer as usize, context: Arc::clone(context) })
    }

    /// Allocates memory that host and device share. The meaning of `relaxed` is that of [`UsmMemory::device`].
    pub(crate) fn shared(
        context: &Arc<Context>,
        device: Device,
        bytes: usize,
        relaxed: bool,
    ) -> Result<Self> {
        let limits = RelaxedLimits { flags: value::MAX_SIZE, ..RelaxedLimits::default() };
        let own = DeviceMemoryDesc { next: chained(&limits, relaxed), ..DeviceMemoryDesc::default() };
        let host = HostMemoryDesc::default();
        let mut pointer = ptr::null_mut();
        // SAFETY: the call reads the descriptions and writes one pointer.
        unsafe {
            call!(
                context.api,
                zeMemAllocShared(
                    context.handle,
                    &raw const own,
                    &raw const host,
                    bytes,
                    ALIGNMENT,
                    device.handle,
                    &raw mut pointer
                )
            )
        }?;
        Ok(Self { pointer: pointer as usize, context: Arc::clone(context) })
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer as *mut u8
    }
}

/// Alignment of allocations in bytes.
const ALIGNMENT: usize = 4096;

impl Drop for UsmMemory {
    fn drop(&mut self) {
        // SAFETY: the memory belongs to this value. Enqueued work keeps its buffers alive until it has ended.
        logged(unsafe { call!(self.context.api, zeMemFree(self.context.handle, self.pointer().cast())) });
    }
}

/// A pool of events that the host can see and that record timestamps. All devices of the context may use
/// them.
pub(crate) struct EventPool {
    handle: Handle,
    context: Arc<Context>,
}

impl EventPool {
    pub(crate) fn new(context: &Arc<Context>, count: u32) -> Result<Arc<Self>> {
        let desc = EventPoolDesc { flags: value::VISIBLE_WITH_TIMESTAMPS, count, ..EventPoolDesc::default() };
        let mut handle = Handle::NULL;
        // SAFETY: the call reads the description and writes one handle. An empty list means all devices.
        unsafe {
            call!(
                context.api,
                zeEventPoolCreate(context.handle, &raw const desc, 0, ptr::null(), &raw mut handle)
            )
        }?;
        Ok(Arc::new(Self { handle, context: Arc::clone(context) }))
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        // SAFETY: the events of the pool hold a reference to it, so none is left.
        logged(unsafe { call!(self.context.api, zeEventPoolDestroy(self.handle)) });
    }
}

/// An event.
pub(crate) struct Event {
    pub(super) handle: Handle,
    pool: Arc<EventPool>,
}

impl Event {
    /// Creates the event at this place of a pool. No other event may have the place. One thread at a time may
    /// create events of a pool.
    pub(crate) fn new(pool: &Arc<EventPool>, index: u32) -> Result<Self> {
        let desc = EventDesc { index, signal: value::HOST, wait: value::HOST, ..EventDesc::default() };
        let mut handle = Handle::NULL;
        // SAFETY: the call reads the description and writes one handle.
        unsafe { call!(pool.context.api, zeEventCreate(pool.handle, &raw const desc, &raw mut handle)) }?;
        Ok(Self { handle, pool: Arc::clone(pool) })
    }

    fn api(&self) -> &'static Api {
        self.pool.context.api
    }

    /// Waits at most `timeout_ns` nanoseconds. Returns true if the event is signalled.
    pub(crate) fn wait(&self, timeout_ns: u64) -> Result<bool> {
        // SAFETY: the event is valid.
        let code = unsafe { (self.api().functions.zeEventHostSynchronize)(self.handle, timeout_ns) };
        super::ready("zeEventHostSynchronize", code)
    }

    /// Returns true if the event is signalled, or if the query fails.
    pub(crate) fn has_passed(&self) -> bool {
        // SAFETY: the event is valid.
        let code = unsafe { (self.api().functions.zeEventQueryStatus)(self.handle) };
        code != NOT_READY
    }

    pub(crate) fn reset(&self) -> Result<()> {
        // SAFETY: the event is valid.
        unsafe { call!(self.api(), zeEventHostReset(self.handle)) }
    }

    /// Signals the event from the host.
    pub(crate) fn signal(&self) -> Result<()> {
        // SAFETY: the event is valid.
        unsafe { call!(self.api(), zeEventHostSignal(self.handle)) }
    }

    /// Returns the times at which the event's command started and ended, in cycles of the device's timer.
    pub(crate) fn times(&self) -> Result<Timestamps> {
        let mut times = Timestamps::default();
        // SAFETY: the call fills the structure.
        unsafe { call!(self.api(), zeEventQueryKernelTimestamp(self.handle, &raw mut times)) }?;
        Ok(times)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event belongs to this value, and no enqueued command uses it.
        logged(unsafe { call!(self.api(), zeEventDestroy(self.handle)) });
    }
}

/// A compiled module.
pub(crate) struct Module {
    handle: Handle,
    context: Arc<Context>,
}

impl Module {
    /// Creates a module from SPIR-V or from a native binary.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the compiler's log if the driver rejects the code.
    pub(crate) fn new(
        context: &Arc<Context>,
        device: Device,
        format: u32,
        code: &[u8],
        flags: &CStr,
    ) -> Result<Self> {
        let desc = ModuleDesc {
            format,
            bytes: code.len(),
            code: code.as_ptr(),
            build_flags: flags.as_ptr(),
            ..ModuleDesc::default()
        };
        let (mut handle, mut log) = (Handle::NULL, Handle::NULL);
        // SAFETY: the call reads the description and the code, and writes two handles.
        let returned = unsafe {
            (context.api.functions.zeModuleCreate)(
                context.handle,
                device.handle,
                &raw const desc,
                &raw mut handle,
                &raw mut log,
            )
        };
        let log = if log == Handle::NULL { String::new() } else { take_log(context.api, log) };
        match returned {
            SUCCESS => {
                if !log.is_empty() {
                    tracing::debug!(log, "log of a compiled module");
                }
                Ok(Self { handle, context: Arc::clone(context) })
            }
            MODULE_BUILD_FAILURE => {
                let log = if log.is_empty() { "the driver gives no log".into() } else { log };
                Err(Error::Compile { log })
            }
            code => Err(failure("zeModuleCreate", code)),
        }
    }

    /// Returns the native binary, or `None` if the driver provides none.
    pub(crate) fn native(&self) -> Option<Vec<u8>> {
        let ask = |bytes: &mut usize, to: *mut u8| {
            // SAFETY: the buffer has room for this many bytes. With a null pointer, the call writes the size.
            unsafe { call!(self.context.api, zeModuleGetNativeBinary(self.handle, bytes, to)) }
        };
        let mut bytes = 0;
        ask(&mut bytes, ptr::null_mut()).ok()?;
        let mut binary = vec![0; bytes];
        ask(&mut bytes, binary.as_mut_ptr()).ok()?;
        binary.truncate(bytes);
        (!binary.is_empty()).then_some(binary)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the kernels of the module hold a reference to it, so none is left.
        logged(unsafe { call!(self.context.api, zeModuleDestroy(self.handle)) });
    }
}

/// Returns the text of a build log and destroys the log.
fn take_log(api: &'static Api, log: Handle) -> String {
    let ask = |bytes: &mut usize, to: *mut u8| {
        // SAFETY: the buffer has room for this many bytes. With a null pointer, the call writes the size.
        unsafe { call!(api, zeModuleBuildLogGetString(log, bytes, to)) }
    };
    let mut bytes = 0;
    let text = ask(&mut bytes, ptr::null_mut()).and_then(|()| {
        let mut text = vec![0; bytes];
        ask(&mut bytes, text.as_mut_ptr()).map(|()| until_zero(&text))
    });
    // SAFETY: the log is not used after this call.
    logged(unsafe { call!(api, zeModuleBuildLogDestroy(log)) });
    text.unwrap_or_default()
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// Address of memory.
    Address(u64),
    /// A 32-bit constant.
    Word(u32),
}

/// A kernel. Its arguments are part of its state, so only one thread at a time may bind and launch it.
pub(crate) struct Kernel {
    pub(super) handle: Handle,
    module: Arc<Module>,
}

impl Kernel {
    pub(crate) fn new(module: &Arc<Module>, name: &str) -> Result<Self> {
        let c_name = CString::new(name).map_err(|_| Error::invalid(format!("invalid name {name:?}")))?;
        let desc = KernelDesc { name: c_name.as_ptr(), ..KernelDesc::default() };
        let (api, mut handle) = (module.context.api, Handle::NULL);
        // SAFETY: the call reads the description and writes one handle.
        unsafe { call!(api, zeKernelCreate(module.handle, &raw const desc, &raw mut handle)) }?;
        Ok(Self { handle, module: Arc::clone(module) })
    }

    fn api(&self) -> &'static Api {
        self.module.context.api
    }

    pub(crate) fn properties(&self) -> Result<KernelProperties> {
        let mut properties = KernelProperties::default();
        // SAFETY: the call fills the structure.
        unsafe { call!(self.api(), zeKernelGetProperties(self.handle, &raw mut properties)) }?;
        Ok(properties)
    }

    /// Sets the size of a work group.
    pub(crate) fn set_group(&mut self, [x, y, z]: [u32; 3]) -> Result<()> {
        // SAFETY: the kernel is valid, and the driver checks the size.
        unsafe { call!(self.api(), zeKernelSetGroupSize(self.handle, x, y, z)) }
    }

    /// Sets all arguments.
    pub(crate) fn bind(&mut self, arguments: &[Argument]) -> Result<()> {
        (0..).zip(arguments).try_for_each(|(at, argument)| {
            let (bytes, from): (usize, *const c_void) = match argument {
                Argument::Address(address) => (size_of::<u64>(), ptr::from_ref(address).cast()),
                Argument::Word(word) => (size_of::<u32>(), ptr::from_ref(word).cast()),
            };
            // SAFETY: the call copies this many bytes. The driver checks the index and the size.
            unsafe { call!(self.api(), zeKernelSetArgumentValue(self.handle, at, bytes, from)) }
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the kernel belongs to this value. Recorded lists contain copies of its state.
        logged(unsafe { call!(self.api(), zeKernelDestroy(self.handle)) });
    }
}
