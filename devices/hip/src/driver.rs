//! Implementation of the stream-ordered driver calls with HIP.
//!
//! Objects release their handles on drop.

use crate::api::symbols::blas::{F16, F32, NONE, STANDARD, TRANSPOSE};
#[cfg(unix)]
use crate::api::symbols::{ExternalBufferDesc, ExternalMemoryDesc, OPAQUE_FD};
use crate::api::symbols::{FUNCTION_MAX_THREADS, Handle, code, copy_kind};
use crate::api::{Api, Blas, blas, call, call_optional, check_blas, lacks};
use crate::error::allocation_failure;
use crate::probe::{Found, WORKSPACE_BYTES};
use crate::program::Programs;
#[cfg(unix)]
use ragtag_hal::DmaBuf;
use ragtag_hal::{DeviceFunction, Error, Gemm, KernelLanguage, Result};
#[cfg(unix)]
use ragtag_stream::Import;
use ragtag_stream::{Driver, FunctionProperties, Heap, Launch, Operands};
use std::ffi::CString;
#[cfg(unix)]
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// `hipStreamNonBlocking`: the stream does not wait for the default stream.
const NON_BLOCKING: u32 = 1;
/// `hipEventBlockingSync`: threads that wait for the event sleep.
const BLOCKING_SYNC: u32 = 1;
/// `hipEventDisableTiming`: the event records no time.
const DISABLE_TIMING: u32 = 2;
/// `hipHostRegisterPortable`: the memory is pinned for all devices.
const PORTABLE: u32 = 1;
/// `hipHostRegisterMapped`: the memory has device addresses.
const MAPPED: u32 = 2;
/// `hipStreamCaptureModeThreadLocal`: the capture does not affect other threads.
const CAPTURE_THREAD_LOCAL: i32 = 1;

/// Makes the driver's device current on the calling thread, and calls a function of the runtime.
macro_rules! on_device {
    ($driver:expr, $call:ident, $function:ident($($argument:expr),* $(,)?)) => {
        $driver.select().and_then(|()| $call!($driver.api.functions, $function($($argument),*)))
    };
}

/// A driver object that is released on drop.
pub(crate) struct Object {
    api: &'static Api,
    ordinal: i32,
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> i32,
}

// SAFETY: HIP objects may be used from any thread, and from several threads at once.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        // Errors are ignored: nothing can be done about a failed release, and after a device loss every
        // release fails.
        if self.api.select(self.ordinal).is_ok() {
            // SAFETY: the handle belongs to this destroy function and is not used again.
            let _ = unsafe { (self.destroy)(self.handle) };
        }
    }
}

/// A kernel function. It keeps its module loaded.
pub(crate) struct Function {
    handle: Handle,
    _module: Arc<Object>,
}

// SAFETY: as for objects.
unsafe impl Send for Function {}
// SAFETY: as for objects.
unsafe impl Sync for Function {}

/// rocBLAS on one device, and its workspace.
struct Products {
    blas: &'static Blas,
    /// Library handle. It is declared before the workspace, so that it is dropped first.
    handle: Object,
    _workspace: Object,
}

/// An opened HIP device.
pub(crate) struct HipDriver {
    api: &'static Api,
    ordinal: i32,
    programs: Programs,
    local_memory_bytes: u64,
    /// Stream used only for allocations. It exists if the driver has memory pools.
    pool: Option<Object>,
    /// Product library. A thread that enqueues a product holds the lock from setting the library's stream
    /// until the product is enqueued.
    products: Mutex<Option<Products>>,
}

impl HipDriver {
    /// Opens a device.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(found: &Found, programs: Programs) -> Result<Self> {
        let mut driver = Self {
            api: found.api,
            ordinal: found.ordinal,
            programs,
            local_memory_bytes: found.adapter.caps.local_memory_bytes,
            pool: None,
            products: Mutex::default(),
        };
        if found.pools {
            driver.pool = Some(driver.stream()?);
        }
        Ok(driver)
    }

    fn select(&self) -> Result<()> {
        self.api.select(self.ordinal)
    }

    fn object(&self, handle: Handle, destroy: unsafe extern "C" fn(Handle) -> i32) -> Object {
        Object { api: self.api, ordinal: self.ordinal, handle, destroy }
    }

    /// Initialises rocBLAS with a workspace that Ragtag allocates. Without it, rocBLAS may allocate a
    /// workspace during a capture, and the capture fails.
    fn products(&self) -> Result<Products> {
        let none = || Error::Unsupported { what: "matrix products without rocBLAS".into() };
        let blas = blas(self.api).ok_or_else(none)?;
        let mut address = ptr::null_mut();
        // SAFETY: the call writes an address.
        let allocated =
            unsafe { on_device!(self, call, hipMalloc(&raw mut address, WORKSPACE_BYTES as usize)) };
        allocated.map_err(|error| allocation_failure(error, WORKSPACE_BYTES))?;
        let workspace = self.object(address, self.api.functions.hipFree);
        let mut handle = ptr::null_mut();
        // SAFETY: the call writes a handle for the current device.
        check_blas("rocblas_create_handle", unsafe {
            (blas.functions.rocblas_create_handle)(&raw mut handle)
        })?;
        let handle = self.object(handle, blas.functions.rocblas_destroy_handle);
        // SAFETY: the workspace lives longer than the handle.
        check_blas("rocblas_set_workspace", unsafe {
            (blas.functions.rocblas_set_workspace)(handle.handle, address, WORKSPACE_BYTES as usize)
        })?;
        Ok(Products { blas, handle, _workspace: workspace })
    }

    /// Loads a code object.
    fn module(&self, code: &[u8]) -> Result<Object> {
        let mut handle = ptr::null_mut();
        // SAFETY: the code states its own length. It comes from the compiler, or from the cache, which checks
        // its checksum.
        unsafe { on_device!(self, call, hipModuleLoadData(&raw mut handle, code.as_ptr())) }?;
        Ok(self.object(handle, self.api.functions.hipModuleUnload))
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has ended. No concurrent access conflicts with the copy.
    unsafe fn copy_async(
        &self,
        stream: &Object,
        from: *const u8,
        to: Handle,
        bytes: usize,
        kind: i32,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { on_device!(self, call, hipMemcpyAsync(to, from, bytes, kind, stream.handle)) }
    }
}

/// Converts a device address to HIP's type for addresses.
fn handle(address: u64) -> Handle {
    address as usize as Handle
}

impl Driver for HipDriver {
    type Stream = Object;
    type Event = Object;
    type Module = Object;
    type Function = Function;
    type Graph = Object;

    fn api(&self) -> &'static str {
        "HIP"
    }

    fn heap(&self) -> Result<Heap> {
        // The pool releases freed memory when its stream is synchronised. This does not wait for other work,
        // because the stream is used only for allocations.
        self.pool.as_ref().map_or(Ok(()), |pool| self.finish(pool))?;
        self.select()?;
        let (free_bytes, total_bytes) = self.api.memory()?;
        Ok(Heap { total_bytes, free_bytes })
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        let Some(pool) = &self.pool else { return self.allocate_shared(bytes) };
        self.select()?;
        let mut address = ptr::null_mut();
        // SAFETY: the call writes an address.
        let allocated = unsafe {
            call_optional!(self.api.functions, hipMallocAsync(&raw mut address, size, pool.handle))
        };
        let allocated = allocated.and_then(|()| self.finish(pool));
        allocated.map_err(|error| allocation_failure(error, bytes))?;
        Ok(address as usize as u64)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        self.select()?;
        match &self.pool {
            // SAFETY: the address was allocated on this pool. The caller guarantees that nothing uses it.
            Some(pool) => unsafe {
                call_optional!(self.api.functions, hipFreeAsync(handle(address), pool.handle))
            },
            // SAFETY: as above, without a pool.
            None => unsafe { call!(self.api.functions, hipFree(handle(address))) },
        }
    }

    /// Allocates memory outside of the stream-ordered pool, because peers cannot access the pool's memory.
    fn allocate_shared(&self, bytes: u64) -> Result<u64> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        let mut address = ptr::null_mut();
        // SAFETY: the call writes an address.
        let allocated = unsafe { on_device!(self, call, hipMalloc(&raw mut address, size)) };
        allocated.map_err(|error| allocation_failure(error, bytes))?;
        Ok(address as usize as u64)
    }

    unsafe fn free_shared(&self, address: u64) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { on_device!(self, call, hipFree(handle(address))) }
    }

    fn reach(&self, owner: &Self) -> Result<()> {
        if self.ordinal == owner.ordinal {
            return Ok(());
        }
        if !self.api.reaches(self.ordinal, owner.ordinal) {
            return Err(Error::Unsupported { what: "accessing the memory of this HIP device".into() });
        }
        self.select()?;
        self.api.reach(owner.ordinal)
    }

    #[cfg(unix)]
    fn import_dma_buf(&self, memory: &DmaBuf, bytes: u64) -> Result<Import> {
        let functions = &self.api.functions;
        let destroy = functions.hipDestroyExternalMemory.ok_or_else(|| lacks("hipDestroyExternalMemory"))?;
        let fd = memory.duplicate(bytes)?;
        let desc = ExternalMemoryDesc {
            kind: OPAQUE_FD,
            fd: fd.as_raw_fd(),
            bytes: memory.allocation_bytes,
            ..ExternalMemoryDesc::default()
        };
        let mut external = ptr::null_mut();
        // SAFETY: the call reads the description and writes a handle.
        let imported = unsafe {
            on_device!(self, call_optional, hipImportExternalMemory(&raw mut external, &raw const desc))
        };
        imported.map_err(|error| allocation_failure(error, bytes))?;
        // A successful import has taken the file descriptor.
        let _ = fd.into_raw_fd();
        let external = self.object(external, destroy);
        let desc = ExternalBufferDesc { bytes, ..ExternalBufferDesc::default() };
        let (mut address, memory) = (ptr::null_mut(), external.handle);
        // SAFETY: the memory has at least this size. The call writes an address.
        unsafe {
            call_optional!(
                functions,
                hipExternalMemoryGetMappedBuffer(&raw mut address, memory, &raw const desc)
            )
        }
        .map_err(|error| allocation_failure(error, bytes))?;
        // The buffer is dropped before the memory.
        let owner = (self.object(address, functions.hipFree), external);
        Ok(Import { address: address as usize as u64, owner: Box::new(owner) })
    }

    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees that the bytes stay allocated while they are pinned.
        unsafe { on_device!(self, call, hipHostRegister(pointer.cast(), bytes, PORTABLE | MAPPED)) }
    }

    unsafe fn pinned_address(&self, pointer: *mut u8) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: the caller guarantees that the bytes are pinned. The call writes an address.
        unsafe {
            on_device!(self, call, hipHostGetDevicePointer(&raw mut address, pointer.cast(), 0))?;
        }
        Ok(address as usize as u64)
    }

    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()> {
        // SAFETY: the caller guarantees that no copy reads or writes the bytes.
        unsafe { on_device!(self, call, hipHostUnregister(pointer.cast())) }
    }

    fn stream(&self) -> Result<Object> {
        let mut handle = ptr::null_mut();
        // SAFETY: the call writes a handle.
        unsafe {
            on_device!(self, call, hipStreamCreateWithFlags(&raw mut handle, NON_BLOCKING))?;
        }
        Ok(self.object(handle, self.api.functions.hipStreamDestroy))
    }

    fn finish(&self, stream: &Object) -> Result<()> {
        // SAFETY: the stream belongs to this device.
        unsafe { on_device!(self, call, hipStreamSynchronize(stream.handle)) }
    }

    fn event(&self, is_timed: bool) -> Result<Object> {
        let flags = if is_timed { BLOCKING_SYNC } else { DISABLE_TIMING };
        let mut handle = ptr::null_mut();
        // SAFETY: the call writes a handle.
        unsafe { on_device!(self, call, hipEventCreateWithFlags(&raw mut handle, flags)) }?;
        Ok(self.object(handle, self.api.functions.hipEventDestroy))
    }

    fn record(&self, event: &Object, stream: &Object) -> Result<()> {
        // SAFETY: the event and the stream belong to this device.
        unsafe { on_device!(self, call, hipEventRecord(event.handle, stream.handle)) }
    }

    fn wait(&self, stream: &Object, event: &Object) -> Result<()> {
        // SAFETY: as above.
        unsafe { on_device!(self, call, hipStreamWaitEvent(stream.handle, event.handle, 0)) }
    }

    fn has_passed(&self, event: &Object) -> bool {
        // SAFETY: the event belongs to this device.
        self.select().is_err()
            || unsafe { (self.api.functions.hipEventQuery)(event.handle) != code::NOT_READY }
    }

    fn synchronise(&self, event: &Object) -> Result<()> {
        // SAFETY: the event belongs to this device.
        unsafe { on_device!(self, call, hipEventSynchronize(event.handle)) }
    }

    fn elapsed_ms(&self, from: &Object, to: &Object) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: the call writes one number.
        unsafe {
            on_device!(self, call, hipEventElapsedTime(&raw mut milliseconds, from.handle, to.handle))?;
        }
        Ok(milliseconds)
    }

    unsafe fn upload(
        &self,
        stream: &Object,
        from: *const u8,
        to: u64,
        bytes: usize,
        _: Option<u32>,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_async(stream, from, handle(to), bytes, copy_kind::UPLOAD) }
    }

    unsafe fn download(&self, stream: &Object, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_async(stream, handle(from).cast(), to.cast(), bytes, copy_kind::DOWNLOAD) }
    }

    unsafe fn copy(&self, stream: &Object, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_async(stream, handle(from).cast(), handle(to), bytes, copy_kind::DEVICE) }
    }

    unsafe fn fill(&self, stream: &Object, to: u64, word: u32, words: usize) -> Result<()> {
        let word = word.cast_signed();
        // SAFETY: the caller guarantees that the range is valid until the fill has ended, without conflicting
        // access.
        unsafe { on_device!(self, call, hipMemsetD32Async(handle(to), word, words, stream.handle)) }
    }

    unsafe fn launch(&self, stream: &Object, launch: &Launch<'_, Self>) -> Result<()> {
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.work_group);
        let mut arguments = launch.arguments.pointers();
        // SAFETY: the caller guarantees that the arguments match the function. The driver reads them before
        // the call returns.
        unsafe {
            on_device!(
                self,
                call,
                hipModuleLaunchKernel(
                    launch.function.handle,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    launch.dynamic_local_bytes,
                    stream.handle,
                    arguments.as_mut_ptr(),
                    ptr::null_mut()
                )
            )
        }
    }

    fn ready_gemm(&self) -> Result<()> {
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        if products.is_none() {
            *products = Some(self.products()?);
        }
        Ok(())
    }

    /// Enqueues a product. rocBLAS is column-major, so it reads each of Ragtag's row-major matrices as its
    /// transpose, and computes yᵀ = (Wᵀ)ᵀ · xᵀ.
    unsafe fn gemm(&self, stream: &Object, product: &Gemm, operands: Operands) -> Result<()> {
        self.select()?;
        let products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let not_ready = || Error::invalid("a product before the library is initialised");
        let Products { blas, handle, .. } = products.as_ref().ok_or_else(not_ready)?;
        // The sizes of a sound product fit in `i32`.
        let size = |size: u32| i32::try_from(size).unwrap_or(i32::MAX);
        let (alpha, beta) = (1f32, if product.accumulate { 1f32 } else { 0f32 });
        let Operands { x, weights, y } = operands;
        // SAFETY: the handle and the stream belong to this device.
        check_blas("rocblas_set_stream", unsafe {
            (blas.functions.rocblas_set_stream)(handle.handle, stream.handle)
        })?;
        // SAFETY: the caller guarantees that the matrices are valid until the product has ended. The call
        // reads the factors before it returns.
        check_blas("rocblas_gemm_ex", unsafe {
            (blas.functions.rocblas_gemm_ex)(
                handle.handle,
                TRANSPOSE,
                NONE,
                size(product.columns),
                size(product.rows),
                size(product.depth),
                &raw const alpha,
                self::handle(weights),
                F16,
                size(product.weights_pitch),
                self::handle(x),
                F16,
                size(product.x_pitch),
                &raw const beta,
                self::handle(y),
                F32,
                size(product.y_pitch),
                self::handle(y),
                F32,
                size(product.y_pitch),
                F32,
                STANDARD,
                0,
                0,
            )
        })
    }

    fn begin_capture(&self, stream: &Object) -> Result<()> {
        // SAFETY: the stream belongs to this device.
        unsafe { on_device!(self, call_optional, hipStreamBeginCapture(stream.handle, CAPTURE_THREAD_LOCAL)) }
    }

    fn end_capture(&self, stream: &Object) -> Result<Object> {
        self.select()?;
        let functions = &self.api.functions;
        let destroy_graph = functions.hipGraphDestroy.ok_or_else(|| lacks("hipGraphDestroy"))?;
        let destroy = functions.hipGraphExecDestroy.ok_or_else(|| lacks("hipGraphExecDestroy"))?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream belongs to this device. The call writes a handle.
        unsafe { call_optional!(functions, hipStreamEndCapture(stream.handle, &raw mut graph)) }?;
        let graph = self.object(graph, destroy_graph);
        let mut executable = ptr::null_mut();
        // SAFETY: the call writes a handle. The log buffer is empty, and its length is zero.
        unsafe {
            call_optional!(
                functions,
                hipGraphInstantiate(&raw mut executable, graph.handle, ptr::null_mut(), ptr::null_mut(), 0)
            )
        }?;
        Ok(self.object(executable, destroy))
    }

    unsafe fn play(&self, stream: &Object, graph: &Object) -> Result<()> {
        // SAFETY: the graph belongs to this device. The caller guarantees that its previous launch has ended.
        unsafe { on_device!(self, call_optional, hipGraphLaunch(graph.handle, stream.handle)) }
    }

    fn load(&self, language: KernelLanguage, text: &str) -> Result<Object> {
        if language != KernelLanguage::HipC {
            return Err(Error::Unsupported { what: format!("{language:?} on a HIP device") });
        }
        self.programs.with_code(text, |code| self.module(code))
    }

    fn function(&self, module: &Arc<Object>, function: &DeviceFunction) -> Result<Function> {
        let DeviceFunction { name, dynamic_local_bytes, .. } = function;
        if u64::from(*dynamic_local_bytes) > self.local_memory_bytes {
            let has = self.local_memory_bytes;
            let what =
                format!("{dynamic_local_bytes} bytes of local memory for {name} (the device has {has})");
            return Err(Error::Unsupported { what });
        }
        let c_name = CString::new(name.as_str())
            .map_err(|_| Error::invalid(format!("invalid function name {name:?}")))?;
        let mut handle = ptr::null_mut();
        // SAFETY: the module belongs to this device, and the name ends with a zero. The call writes a handle.
        let found = unsafe {
            on_device!(self, call, hipModuleGetFunction(&raw mut handle, module.handle, c_name.as_ptr()))
        };
        match found {
            Ok(()) => Ok(Function { handle, _module: Arc::clone(module) }),
            Err(lost @ Error::Lost { .. }) => Err(lost),
            Err(error) => Err(Error::Compile { log: format!("function {name}: {error}") }),
        }
    }

    fn facts(&self, function: &Function) -> Result<FunctionProperties> {
        let mut items = 0;
        // SAFETY: the function belongs to this device. The call writes one number.
        unsafe {
            on_device!(
                self,
                call,
                hipFuncGetAttribute(&raw mut items, FUNCTION_MAX_THREADS, function.handle)
            )?;
        }
        // HIP does not report the number of parameters.
        Ok(FunctionProperties { max_work_group_items: items.unsigned_abs(), parameters: None })
    }
}
