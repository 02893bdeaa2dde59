//! Owned driver objects that are released on drop.
//!
//! Every object keeps its context alive. Every call first makes the context current on the calling thread.

use super::functions::{Functions, check, enter};
use super::partition::{Partition, report};
use crate::error::{allocation_failure, code_failure, peer_access};
use cudarc::driver::sys::{
    CUcontext, CUctx_flags, CUdevice, CUevent, CUevent_flags, CUfunction, CUgraphExec, CUjit_option,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps,
    CUmemoryPool, CUmodule, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use ragtag_hal::{Error, Result};
use std::ffi::{CStr, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size in bytes of the buffer for the log of the driver's compiler.
const LOG_BYTES: usize = 64 << 10;

/// The primary context of a device. `partition` is set if streams run only on some of the multiprocessors.
pub(crate) struct Context {
    functions: Arc<Functions>,
    device: CUdevice,
    raw: CUcontext,
    partition: Option<Partition>,
}

// SAFETY: a context may be current on several threads at once, and the driver's calls are thread-safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device. If the limit is `Some(n)`, streams use at most `n`
    /// multiprocessors.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the driver cannot limit streams to exactly that number. Otherwise
    /// returns the driver's error.
    pub(crate) fn new(
        functions: &Arc<Functions>,
        device: CUdevice,
        multiprocessors: Option<u32>,
    ) -> Result<Arc<Self>> {
        let flags = CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as c_uint;
        // SAFETY: the call only sets how threads wait. If another user of the device has already set this,
        // the call fails without effect.
        if let Err(error) = unsafe { check!(functions, cuDevicePrimaryCtxSetFlags_v2(device, flags)) } {
            tracing::debug!(%error, "another user of the context has set how threads wait");
        }
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { check!(functions, cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        let mut context = Self { functions: Arc::clone(functions), device, raw, partition: None };
        if let Some(count) = multiprocessors {
            context.partition = Some(Partition::new(functions, device, count)?);
        }
        Ok(Arc::new(context))
    }

    /// Makes this context current on the calling thread and returns the functions.
    pub(crate) fn enter(&self) -> Result<&Functions> {
        // SAFETY: the context is alive as long as `self`.
        unsafe { check!(&self.functions, cuCtxSetCurrent(self.raw)) }?;
        Ok(&self.functions)
    }

    /// Gives work in this context access to the memory that `cuMemAlloc` allocates in the context `owner`.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the device cannot access the memory of the owner's device. Otherwise
    /// returns the driver's error.
    pub(crate) fn reach(&self, owner: &Self) -> Result<()> {
        // Each device has only one primary context.
        if self.device == owner.device {
            return Ok(());
        }
        let (functions, mut can) = (self.enter()?, 0);
        // SAFETY: the call writes one number.
        unsafe { check!(functions, cuDeviceCanAccessPeer(&mut can, self.device, owner.device)) }?;
        if can == 0 {
            return Err(Error::Unsupported { what: "accessing the memory of this CUDA device".into() });
        }
        // SAFETY: this context is current, and both contexts are alive.
        peer_access(unsafe { check!(functions, cuCtxEnablePeerAccess(owner.raw, 0)) })
    }

    /// Returns the CUDA version that the driver supports.
    pub(crate) fn version(&self) -> i32 {
        self.functions.version()
    }

    /// Returns the free and total device memory in bytes.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two numbers.
        unsafe { enter!(self, cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The partition refers to the context, so it must be dropped before the context is released.
        self.partition = None;
        // SAFETY: the context was retained in `new`, and every object that needs it keeps it alive.
        report(unsafe { check!(&self.functions, cuDevicePrimaryCtxRelease_v2(self.device)) });
    }
}

/// Defines an owned driver object from its handle type and its destroy function. The object keeps its context
/// alive.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident($raw:ty), $destroy:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            context: Arc<Context>,
            raw: $raw,
        }

        // SAFETY: the driver's handles may be used from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above. The contracts of the methods exclude concurrent calls that the driver forbids.
        unsafe impl Sync for $name {}

        impl $name {
            pub(crate) fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let entered = self.context.enter();
                // SAFETY: the handle was created in `new`, and nothing else owns it.
                report(entered.and_then(|functions| unsafe { check!(functions, $destroy(self.raw)) }));
            }
        }
    };
}

object! {
    /// An event that records its completion time. A thread that waits for it sleeps instead of spinning.
    Event(CUevent), cuEventDestroy_v2
}
object! {
    /// An executable graph.
    Graph(CUgraphExec), cuGraphExecDestroy
}
object! {
    /// A loaded module.
    Module(CUmodule), cuModuleUnload
}
object! {
    /// A device memory pool. It returns unused memory to the device.
    Pool(CUmemoryPool), cuMemPoolDestroy
}
object! {
    /// An owned stream handle.
    RawStream(CUstream), cuStreamDestroy_v2
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>, is_timed: bool) -> Result<Self> {
        let blocking = CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
        let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let flags = if is_timed { blocking } else { untimed };
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { enter!(context, cuEventCreate(&mut raw, flags)) }?;
        Ok(Self { context: Arc::clone(context), raw })
    }
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.device,
            },
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            reserved: [0; 56],
        };
        let mut raw = null_mut();
        // SAFETY: the call reads the properties and writes one handle.
        unsafe { enter!(context, cuMemPoolCreate(&mut raw, &properties)) }?;
        Ok(Self { context: Arc::clone(context), raw })
    }
}

/// A stream without implicit synchronisation with other streams.
pub(crate) struct Stream {
    raw: RawStream,
    capturing: AtomicBool,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        let raw = match &context.partition {
            Some(partition) => partition.stream(flags)?,
            None => {
                let mut raw = null_mut();
                // SAFETY: the call writes one handle.
                unsafe { enter!(context, cuStreamCreate(&mut raw, flags)) }?;
                raw
            }
        };
        let raw = RawStream { context: Arc::clone(context), raw };
        Ok(Self { raw, capturing: AtomicBool::new(false) })
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw.raw()
    }

    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { enter!(self.raw.context, cuStreamSynchronize(self.raw())) }
    }

    /// Returns true while the stream captures enqueued work instead of running it.
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_capture(&self) -> Result<()> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        unsafe { enter!(self.raw.context, cuStreamBeginCapture_v2(self.raw(), mode)) }?;
        self.capturing.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn end_capture(&self) -> Result<Graph> {
        self.capturing.store(false, Ordering::Relaxed);
        let functions = self.raw.context.enter()?;
        let mut template = null_mut();
        // SAFETY: the stream is alive. The call writes one handle.
        unsafe { check!(functions, cuStreamEndCapture(self.raw(), &mut template)) }?;
        let mut raw = null_mut();
        // SAFETY: the driver created the template. The call writes one handle.
        let made = unsafe { check!(functions, cuGraphInstantiateWithFlags(&mut raw, template, 0)) };
        // SAFETY: nothing else owns the template, and it is not used again.
        report(unsafe { check!(functions, cuGraphDestroy(template)) });
        made.map(|()| Graph { context: Arc::clone(&self.raw.context), raw })
    }
}

impl Module {
    /// Loads PTX text that ends with a zero byte, or a cubin.
    pub(crate) fn new(context: &Arc<Context>, code: &[u8]) -> Result<Self> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes a numeric option as a pointer-sized integer.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut raw = null_mut();
        // SAFETY: the code ends with a zero or states its length in its header. The log buffer is as large as
        // the option states.
        let loaded = unsafe {
            enter!(
                context,
                cuModuleLoadDataEx(
                    &mut raw,
                    code.as_ptr().cast(),
                    options.len() as c_uint,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            )
        };
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
        loaded.map_err(|error| code_failure(error, text.trim()))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Returns a function of the module.
    pub(crate) fn function(self: &Arc<Self>, name: &CStr) -> Result<Function> {
        let mut raw = null_mut();
        // SAFETY: the name ends with a zero. The call writes one handle.
        let found = unsafe { enter!(self.context, cuModuleGetFunction(&mut raw, self.raw(), name.as_ptr())) };
        found.map_err(|error| code_failure(error, &format!("no function {}", name.to_string_lossy())))?;
        Ok(Function { _module: Arc::clone(self), raw })
    }
}

/// A kernel function.
pub(crate) struct Function {
    _module: Arc<Module>,
    raw: CUfunction,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn raw(&self) -> CUfunction {
        self.raw
    }
}

impl Pool {
    /// Allocates memory in stream order: the memory may be used once all earlier work on the stream has
    /// ended.
    pub(crate) fn allocate(&self, stream: &Stream, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the call writes one address.
        let allocated = unsafe {
            enter!(self.context, cuMemAllocFromPoolAsync(&mut address, bytes, self.raw(), stream.raw()))
        };
        allocated.map_err(|error| allocation_failure(error, bytes as u64))?;
        Ok(address)
    }

    /// Returns the pool's unused memory to the device.
    pub(crate) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is alive.
        unsafe { enter!(self.context, cuMemPoolTrimTo(self.raw(), 0)) }
    }
}
