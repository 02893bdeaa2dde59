//! Implements HIP on CUDA devices. Most functions call the CUDA function of the same name in the device's
//! primary context.

use crate::cuda::{Driver, driver};
use crate::nvrtc;
use hip_shim::symbols::Handle;
use hip_shim::symbols::code::{LAUNCH_FAILURE, NO_DEVICE, NOT_READY};
use hip_shim::{DeviceProperties, Engine, Result, Shape, Signature};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

/// Values of `CUdevice_attribute`.
mod attribute {
    pub(super) const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub(super) const MAX_SHARED_MEMORY_PER_BLOCK: i32 = 8;
    pub(super) const MULTIPROCESSOR_COUNT: i32 = 16;
    pub(super) const CAPABILITY_MAJOR: i32 = 75;
    pub(super) const CAPABILITY_MINOR: i32 = 76;
    pub(super) const MEMORY_POOLS_SUPPORTED: i32 = 115;
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_BLOCKING_SYNC`.
const BLOCKING_SYNC: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const CAPTURE_THREAD_LOCAL: i32 = 1;
/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const FUNCTION_MAX_THREADS: i32 = 0;

/// HIP engine over all CUDA devices.
pub(crate) struct Cuda {
    driver: Driver,
    /// Primary context of each device. The engine never releases it.
    contexts: Vec<Shared>,
    facts: Vec<DeviceProperties>,
    /// Compute capability of the first device. The engine compiles all code for it.
    capability: i32,
}

/// CUDA handle that threads may share.
#[derive(Clone, Copy)]
struct Shared(Handle);

// SAFETY: any thread may use CUDA's objects, even concurrently with other threads.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

/// CUDA object that belongs to a device and is destroyed on drop.
pub(crate) struct Object {
    device: usize,
    handle: Shared,
    destroy: unsafe extern "C" fn(Handle) -> i32,
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Ok(engine) = Cuda::engine()
            && engine.select(self.device).is_ok()
        {
            // SAFETY: `destroy` is the destructor for this kind of handle, and nothing else holds the handle.
            unsafe { (self.destroy)(self.handle.0) };
        }
    }
}

pub(crate) struct Function {
    device: usize,
    handle: Shared,
}

/// Converts a CUDA error code to a HIP error code. The codes are equal, except that HIP has one code for all
/// kernel exceptions.
fn check(code: i32) -> Result<()> {
    match code {
        0 => Ok(()),
        714..=718 => Err(LAUNCH_FAILURE),
        other => Err(other),
    }
}

/// Calls `write` with a buffer, and returns the string that `write` stores in it.
fn text(write: impl FnOnce(*mut c_char, i32) -> i32) -> Result<String> {
    let mut buffer = [0u8; 256];
    check(write(buffer.as_mut_ptr().cast(), buffer.len() as i32 - 1))?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn facts(driver: &Driver, device: i32) -> Result<DeviceProperties> {
    let number = |attribute| {
        let mut value = 0;
        // SAFETY: the call writes one number.
        check(unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, attribute, device) }).map(|()| value)
    };
    let (mut total_bytes, mut uuid) = (0, [0; 16]);
    // SAFETY: the call writes one number.
    check(unsafe { (driver.cuDeviceTotalMem_v2)(&raw mut total_bytes, device) })?;
    // SAFETY: the call writes sixteen bytes.
    let identified = check(unsafe { (driver.cuDeviceGetUuid)(&raw mut uuid, device) });
    Ok(DeviceProperties {
        // SAFETY: the call writes no more than `bytes` bytes.
        name: text(|buffer, bytes| unsafe { (driver.cuDeviceGetName)(buffer, bytes, device) })?,
        // SAFETY: the call writes no more than `bytes` bytes.
        pci: text(|buffer, bytes| unsafe { (driver.cuDeviceGetPCIBusId)(buffer, bytes, device) }).ok(),
        uuid: identified.ok().map(|()| uuid),
        total_bytes,
        units: number(attribute::MULTIPROCESSOR_COUNT)?,
        max_items: number(attribute::MAX_THREADS_PER_BLOCK)?,
        local_bytes: number(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
        pools: number(attribute::MEMORY_POOLS_SUPPORTED).unwrap_or(0) != 0,
    })
}

impl Cuda {
    fn new() -> Result<Self> {
        let driver = driver()?;
        let mut count = 0;
        // SAFETY: this is the first call to the driver.
        check(unsafe { (driver.cuInit)(0) })?;
        // SAFETY: the call writes one number.
        check(unsafe { (driver.cuDeviceGetCount)(&raw mut count) })?;
        let facts = (0..count).map(|device| facts(&driver, device)).collect::<Result<Vec<_>>>()?;
        let context = |device| {
            let mut context = ptr::null_mut();
            // SAFETY: the call writes a handle.
            check(unsafe { (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device) })?;
            Ok(Shared(context))
        };
        let contexts = (0..count).map(context).collect::<Result<Vec<_>>>()?;
        if contexts.is_empty() {
            return Err(NO_DEVICE);
        }
        let [mut major, mut minor] = [0; 2];
        for (value, which) in
            [(&mut major, attribute::CAPABILITY_MAJOR), (&mut minor, attribute::CAPABILITY_MINOR)]
        {
            // SAFETY: the call writes one number.
            check(unsafe { (driver.cuDeviceGetAttribute)(value, which, 0) })?;
        }
        Ok(Self { driver, contexts, facts, capability: 10 * major + minor })
    }

    fn select(&self, device: usize) -> Result<()> {
        // SAFETY: the context is never released.
        check(unsafe { (self.driver.cuCtxSetCurrent)(self.contexts[device].0) })
    }

    /// Calls `make` in the context of `device`, and returns the handle that `make` writes.
    fn handle(&self, device: usize, make: impl FnOnce(*mut Handle) -> i32) -> Result<Handle> {
        self.select(device)?;
        let mut handle = ptr::null_mut();
        check(make(&raw mut handle))?;
        Ok(handle)
    }
}

impl Engine for Cuda {
    type Stream = Object;
    type Event = Object;
    type Module = Object;
    type Function = Function;
    type Graph = Object;

    fn engine() -> Result<&'static Self> {
        static ENGINE: OnceLock<Result<Cuda>> = OnceLock::new();
        ENGINE.get_or_init(Cuda::new).as_ref().map_err(|code| *code)
    }

    fn devices(&self) -> &[DeviceProperties] {
        &self.facts
    }

    fn free_bytes(&self, device: usize) -> Result<usize> {
        self.select(device)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two numbers.
        check(unsafe { (self.driver.cuMemGetInfo_v2)(&raw mut free, &raw mut total) })?;
        Ok(free)
    }

    fn allocate(&self, device: usize, bytes: usize) -> Result<Handle> {
        // SAFETY: the call writes an address.
        self.handle(device, |address| unsafe { (self.driver.cuMemAlloc_v2)(address, bytes) })
    }

    fn free(&self, device: usize, address: Handle) -> Result<()> {
        self.select(device)?;
        // SAFETY: the HIP caller guarantees that the address was allocated and that nothing uses it.
        check(unsafe { (self.driver.cuMemFree_v2)(address) })
    }

    fn owner(&self, _: usize) -> Option<usize> {
        None
    }

    fn allocate_on(&self, stream: &Object, bytes: usize) -> Result<Handle> {
        self.handle(stream.device, |address| {
            // SAFETY: the call writes an address.
            unsafe { (self.driver.cuMemAllocAsync)(address, bytes, stream.handle.0) }
        })
    }

    fn free_on(&self, stream: &Object, address: Handle) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: as for `free`.
        check(unsafe { (self.driver.cuMemFreeAsync)(address, stream.handle.0) })
    }

    fn pin(&self, device: usize, pointer: *mut c_void, bytes: usize) -> Result<()> {
        self.select(device)?;
        // SAFETY: the HIP caller guarantees that the bytes stay allocated.
        check(unsafe { (self.driver.cuMemHostRegister_v2)(pointer, bytes, PORTABLE) })
    }

    fn pinned_address(&self, device: usize, pointer: *mut c_void) -> Result<Handle> {
        // SAFETY: the HIP caller guarantees that the memory is pinned. The call writes an address.
        self.handle(device, |address| unsafe {
            (self.driver.cuMemHostGetDevicePointer_v2)(address, pointer, 0)
        })
    }

    fn unpin(&self, device: usize, pointer: *mut c_void) -> Result<()> {
        self.select(device)?;
        // SAFETY: the HIP caller guarantees that no copy uses the memory.
        check(unsafe { (self.driver.cuMemHostUnregister)(pointer) })
    }

    fn stream(&self, device: usize) -> Result<Object> {
        // SAFETY: the call writes a handle.
        let handle =
            self.handle(device, |stream| unsafe { (self.driver.cuStreamCreate)(stream, NON_BLOCKING) });
        Ok(Object { device, handle: Shared(handle?), destroy: self.driver.cuStreamDestroy_v2 })
    }

    fn finish(&self, stream: &Object) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the stream belongs to this device.
        check(unsafe { (self.driver.cuStreamSynchronize)(stream.handle.0) })
    }

    fn event(&self, device: usize) -> Result<Object> {
        // SAFETY: the call writes a handle.
        let handle =
            self.handle(device, |event| unsafe { (self.driver.cuEventCreate)(event, BLOCKING_SYNC) });
        Ok(Object { device, handle: Shared(handle?), destroy: self.driver.cuEventDestroy_v2 })
    }

    fn record(&self, event: &Object, stream: &Object) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the event and the stream belong to this device.
        check(unsafe { (self.driver.cuEventRecord)(event.handle.0, stream.handle.0) })
    }

    fn wait(&self, stream: &Object, event: &Object) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the event and the stream belong to this device.
        check(unsafe { (self.driver.cuStreamWaitEvent)(stream.handle.0, event.handle.0, 0) })
    }

    fn has_passed(&self, event: &Object) -> Result<bool> {
        self.select(event.device)?;
        // SAFETY: the event belongs to this device.
        match unsafe { (self.driver.cuEventQuery)(event.handle.0) } {
            NOT_READY => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    fn synchronise(&self, event: &Object) -> Result<()> {
        self.select(event.device)?;
        // SAFETY: the event belongs to this device.
        check(unsafe { (self.driver.cuEventSynchronize)(event.handle.0) })
    }

    fn elapsed_ms(&self, from: &Object, to: &Object) -> Result<f32> {
        self.select(from.device)?;
        let mut milliseconds = 0.0;
        // SAFETY: the call writes one number.
        check(unsafe {
            (self.driver.cuEventElapsedTime)(&raw mut milliseconds, from.handle.0, to.handle.0)
        })?;
        Ok(milliseconds)
    }

    fn copy(&self, stream: &Object, to: Handle, from: *const u8, bytes: usize, _: i32) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the HIP caller guarantees that both ranges are valid until the copy has ended. The driver
        // derives the direction from the addresses.
        check(unsafe { (self.driver.cuMemcpyAsync)(to, from, bytes, stream.handle.0) })
    }

    fn fill(&self, stream: &Object, to: Handle, word: u32, words: usize) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: as for `copy`.
        check(unsafe { (self.driver.cuMemsetD32Async)(to, word, words, stream.handle.0) })
    }

    fn compile(
        &self,
        _: &[usize],
        text: &str,
        _: &[String],
    ) -> std::result::Result<(Vec<Signature>, Vec<u8>), String> {
        // CUDA knows the parameters of its functions, so no signatures are needed.
        Ok((Vec::new(), nvrtc::compile(text, self.capability)?))
    }

    fn load(&self, device: usize, _: Vec<Signature>, code: &[u8]) -> Result<Object> {
        // SAFETY: NVRTC's output contains its own length.
        let module = |module| unsafe { (self.driver.cuModuleLoadData)(module, code.as_ptr()) };
        let handle = Shared(self.handle(device, module)?);
        Ok(Object { device, handle, destroy: self.driver.cuModuleUnload })
    }

    fn function(&self, module: &Object, name: &CStr) -> Result<Function> {
        let device = module.device;
        let handle = self.handle(device, |function| {
            // SAFETY: the module belongs to this device, and the name is zero-terminated.
            unsafe { (self.driver.cuModuleGetFunction)(function, module.handle.0, name.as_ptr()) }
        });
        Ok(Function { device, handle: Shared(handle?) })
    }

    fn max_items(&self, function: &Function) -> Result<i32> {
        self.select(function.device)?;
        let mut items = 0;
        // SAFETY: the call writes one number.
        check(unsafe {
            (self.driver.cuFuncGetAttribute)(&raw mut items, FUNCTION_MAX_THREADS, function.handle.0)
        })?;
        Ok(items)
    }

    fn launch(
        &self,
        stream: &Object,
        function: &Function,
        shape: &Shape,
        arguments: *const Handle,
    ) -> Result<()> {
        self.select(stream.device)?;
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (shape.grid, shape.block);
        // SAFETY: the HIP caller guarantees that the arguments match the function's parameters.
        check(unsafe {
            (self.driver.cuLaunchKernel)(
                function.handle.0,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shape.shared_bytes,
                stream.handle.0,
                arguments,
                ptr::null_mut(),
            )
        })
    }

    fn begin_capture(&self, stream: &Object) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the stream belongs to this device.
        check(unsafe { (self.driver.cuStreamBeginCapture_v2)(stream.handle.0, CAPTURE_THREAD_LOCAL) })
    }

    fn end_capture(&self, stream: &Object) -> Result<Object> {
        let device = stream.device;
        let graph = self.handle(device, |graph| {
            // SAFETY: the stream belongs to this device; the call writes a handle.
            unsafe { (self.driver.cuStreamEndCapture)(stream.handle.0, graph) }
        });
        let graph = Object { device, handle: Shared(graph?), destroy: self.driver.cuGraphDestroy };
        let executable = self.handle(device, |executable| {
            // SAFETY: the graph is valid; the call writes a handle.
            unsafe { (self.driver.cuGraphInstantiateWithFlags)(executable, graph.handle.0, 0) }
        });
        Ok(Object { device, handle: Shared(executable?), destroy: self.driver.cuGraphExecDestroy })
    }

    fn play(&self, graph: &Object, stream: &Object) -> Result<()> {
        self.select(stream.device)?;
        // SAFETY: the graph belongs to this device.
        check(unsafe { (self.driver.cuGraphLaunch)(graph.handle.0, stream.handle.0) })
    }
}
