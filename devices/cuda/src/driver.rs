//! Implementation of the stream-ordered driver calls with CUDA.
//!
//! # Overlapping launches
//! From compute capability 9.0 on, programmatic dependent launch can start a kernel while its predecessor in
//! the stream is still running. Such a kernel must contain `griddepcontrol.wait`, which waits for the
//! predecessor's results. Only kernels with this instruction are launched with the attribute that permits the
//! overlap.
//!
//! From CUDA 12.3 on, a capture turns the attribute into an edge of the graph. Older drivers reject such a
//! graph, so captures on older drivers omit the attribute.

#[cfg(unix)]
use crate::api::ExternalMemory;
use crate::api::{
    self, Context, CublasLt, Event, Functions, Graph, Pool, Products, Stream, Uploads, Workspace, check,
    enter,
};
use crate::error::allocation_failure;
use crate::nvrtc::Compiler;
use crate::ptx::{self, Entry};
use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUfunction_attribute, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUresult,
};
#[cfg(unix)]
use ragtag_hal::OpaqueFd;
use ragtag_hal::{DeviceFunction, Error, Gemm, KernelLanguage, Result};
#[cfg(unix)]
use ragtag_stream::Import;
use ragtag_stream::{Driver, FunctionProperties, Heap, Launch, Operands};
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// First CUDA version whose graphs support the overlap attribute.
const OVERLAP_IN_GRAPHS: i32 = 12_030;

/// Size of cuBLASLt's workspace. NVIDIA recommends 32 MiB for compute capability 9.0.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;

/// Properties of a device that affect the driver calls.
pub(crate) struct Abilities {
    /// Whether the device supports programmatic dependent launch.
    pub(crate) overlaps: bool,
    /// Whether Ragtag allocates memory from stream-ordered pools.
    pub(crate) pools: bool,
    /// Maximum local memory of a work group, in bytes.
    pub(crate) local_memory_bytes: u64,
}

/// A stream-ordered pool, and a stream that is used only for allocations. Because of this separate stream,
/// allocations and other work do not wait for each other.
struct Ordered {
    pool: Pool,
    stream: Stream,
}

/// Optional libraries that a device can use.
#[derive(Default)]
pub(crate) struct Tools {
    pub(crate) compiler: Option<Compiler>,
    pub(crate) cublas_lt: Option<Arc<CublasLt>>,
}

/// An opened device.
pub(crate) struct CudaDriver {
    context: Arc<Context>,
    memory: Option<Ordered>,
    tools: Tools,
    /// cuBLASLt and its workspace. They are created with the first module that has products.
    products: Mutex<Option<(Products, Workspace)>>,
    uploads: Uploads,
    abilities: Abilities,
}

/// A loaded module and the properties of its functions.
pub(crate) struct Code {
    module: Arc<api::Module>,
    entries: HashMap<String, Entry>,
}

/// A kernel function.
pub(crate) struct Function {
    raw: api::Function,
    entry: Option<Entry>,
    /// Whether this function may start before the previous kernel has ended.
    overlaps: bool,
}

impl CudaDriver {
    pub(crate) fn new(context: Arc<Context>, tools: Tools, abilities: Abilities) -> Result<Self> {
        let memory = abilities.pools.then(|| Ordered::new(&context)).transpose()?;
        Ok(Self {
            context,
            memory,
            tools,
            products: Mutex::default(),
            uploads: Uploads::default(),
            abilities,
        })
    }

    fn enter(&self) -> Result<&Functions> {
        self.context.enter()
    }

    fn attribute(&self, function: &api::Function, attribute: CUfunction_attribute) -> Result<u64> {
        let mut value = 0;
        // SAFETY: the function is alive. The call writes one number.
        unsafe { enter!(self, cuFuncGetAttribute(&mut value, attribute, function.raw())) }?;
        Ok(u64::try_from(value).unwrap_or(0))
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let products = self.products.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some((products, workspace)) = products else { return };
        drop(products);
        // SAFETY: the workspace was allocated for the products, which have been dropped. Enqueued work keeps
        // the driver alive until it has ended.
        if let Err(error) = unsafe { self.free(workspace.address) } {
            tracing::debug!(%error, "cannot free cuBLASLt's workspace");
        }
    }
}

impl Ordered {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { pool: Pool::new(context)?, stream: Stream::new(context)? })
    }

    /// Waits until all frees have taken effect, then returns the pool's unused memory to the device.
    fn settle(&self) -> Result<()> {
        self.stream.finish()?;
        self.pool.trim()
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let allocate = || self.pool.allocate(&self.stream, bytes);
        let allocated = allocate().or_else(|error| match error {
            // The pool's free memory may be fragmented into blocks that are too small.
            Error::OutOfMemory { .. } => self.settle().and_then(|()| allocate()),
            other => Err(other),
        });
        let address = allocated?;
        self.stream.finish()?;
        Ok(address)
    }
}

impl Driver for CudaDriver {
    type Stream = Stream;
    type Event = Event;
    type Module = Code;
    type Function = Function;
    type Graph = Graph;

    fn api(&self) -> &'static str {
        "CUDA"
    }

    fn heap(&self) -> Result<Heap> {
        self.memory.as_ref().map_or(Ok(()), Ordered::settle)?;
        let (free_bytes, total_bytes) = self.context.memory()?;
        Ok(Heap { total_bytes, free_bytes })
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        self.memory.as_ref().map_or_else(|| self.allocate_shared(bytes), |memory| memory.allocate(size))
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let functions = self.enter()?;
        match &self.memory {
            // SAFETY: guaranteed by the caller.
            Some(memory) => unsafe { check!(functions, cuMemFreeAsync(address, memory.stream.raw())) },
            // SAFETY: as above.
            None => unsafe { check!(functions, cuMemFree_v2(address)) },
        }
    }

    /// Allocates memory outside of the stream-ordered pool, because peers cannot access the pool's memory.
    fn allocate_shared(&self, bytes: u64) -> Result<u64> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        let allocate = || {
            let mut address = 0;
            // SAFETY: the call writes one address.
            let allocated = unsafe { enter!(self, cuMemAlloc_v2(&mut address, size)) };
            allocated.map(|()| address).map_err(|error| allocation_failure(error, bytes))
        };
        allocate().or_else(|error| match (error, &self.memory) {
            // The pool may hold memory that it does not use.
            (Error::OutOfMemory { .. }, Some(memory)) => memory.settle().and_then(|()| allocate()),
            (other, _) => Err(other),
        })
    }

    unsafe fn free_shared(&self, address: u64) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemFree_v2(address)) }
    }

    fn reach(&self, owner: &Self) -> Result<()> {
        self.context.reach(&owner.context)
    }

    #[cfg(unix)]
    fn import(&self, memory: &OpaqueFd, bytes: u64) -> Result<Import> {
        let memory = ExternalMemory::new(&self.context, memory, bytes)?;
        Ok(Import { address: memory.address(), owner: Box::new(memory) })
    }

    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        // Every device accesses the memory, also through device addresses.
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemHostRegister_v2(pointer.cast(), bytes, flags)) }
    }

    unsafe fn pinned_address(&self, pointer: *mut u8) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the caller guarantees that the memory is pinned. The call writes one address.
        unsafe { enter!(self, cuMemHostGetDevicePointer_v2(&mut address, pointer.cast(), 0)) }?;
        Ok(address)
    }

    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemHostUnregister(pointer.cast())) }
    }

    fn stream(&self) -> Result<Stream> {
        Stream::new(&self.context)
    }

    fn finish(&self, stream: &Stream) -> Result<()> {
        stream.finish()
    }

    fn event(&self, is_timed: bool) -> Result<Event> {
        Event::new(&self.context, is_timed)
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        // SAFETY: both objects are alive.
        unsafe { enter!(self, cuEventRecord(event.raw(), stream.raw())) }
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        // SAFETY: both objects are alive.
        unsafe { enter!(self, cuStreamWaitEvent(stream.raw(), event.raw(), 0)) }
    }

    fn has_passed(&self, event: &Event) -> bool {
        let Ok(functions) = self.enter() else { return true };
        // SAFETY: the event is alive.
        unsafe { (functions.cuEventQuery)(event.raw()) != CUresult::CUDA_ERROR_NOT_READY as u32 }
    }

    fn synchronise(&self, event: &Event) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { enter!(self, cuEventSynchronize(event.raw())) }
    }

    fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32> {
        let mut elapsed_ms = 0.0;
        // SAFETY: both objects are alive. The call writes one number.
        unsafe { enter!(self, cuEventElapsedTime(&mut elapsed_ms, from.raw(), to.raw())) }?;
        Ok(elapsed_ms)
    }

    unsafe fn upload(
        &self,
        stream: &Stream,
        from: *const u8,
        to: u64,
        bytes: usize,
        used: Option<u32>,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let copies = || unsafe { self.uploads.enqueue(&self.context, stream, (from, to, bytes), used) };
        if stream.is_capturing() && copies()? {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream.raw())) }
    }

    unsafe fn download(&self, stream: &Stream, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream.raw())) }
    }

    unsafe fn copy(&self, stream: &Stream, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw())) }
    }

    unsafe fn fill(&self, stream: &Stream, to: u64, word: u32, words: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuMemsetD32Async(to, word, words, stream.raw())) }
    }

    unsafe fn launch(&self, stream: &Stream, launch: &Launch<'_, Self>) -> Result<()> {
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let kept = self.context.version() >= OVERLAP_IN_GRAPHS || !stream.is_capturing();
        let [x, y, z] = launch.grid;
        let [block_x, block_y, block_z] = launch.work_group;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: launch.dynamic_local_bytes,
            hStream: stream.raw(),
            attrs: &mut overlap,
            numAttrs: u32::from(launch.function.overlaps && kept),
        };
        let mut arguments = launch.arguments.pointers();
        let raw = launch.function.raw.raw();
        // SAFETY: guaranteed by the caller. The driver reads as many arguments as the function has
        // parameters.
        unsafe { enter!(self, cuLaunchKernelEx(&config, raw, arguments.as_mut_ptr(), null_mut())) }
    }

    fn ready_gemm(&self) -> Result<()> {
        let mut ready = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.is_some() {
            return Ok(());
        }
        let none = || Error::Unsupported { what: "matrix products without cuBLASLt".into() };
        let library = self.tools.cublas_lt.as_ref().ok_or_else(none)?;
        let address = self.allocate(WORKSPACE_BYTES)?;
        let workspace = Workspace { address, bytes: WORKSPACE_BYTES as usize };
        match Products::new(library, &self.context, workspace) {
            Ok(products) => *ready = Some((products, workspace)),
            Err(error) => {
                // SAFETY: nothing has used this workspace yet.
                unsafe { self.free(address) }?;
                return Err(error);
            }
        }
        Ok(())
    }

    unsafe fn gemm(&self, stream: &Stream, product: &Gemm, operands: Operands) -> Result<()> {
        let ready = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let (products, _) =
            ready.as_ref().ok_or_else(|| Error::invalid("a product before the library is initialised"))?;
        let Operands { x, weights, y } = operands;
        // SAFETY: guaranteed by the caller.
        unsafe { products.enqueue(stream, product, [x, weights, y]) }
    }

    fn begin_capture(&self, stream: &Stream) -> Result<()> {
        stream.begin_capture()
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph> {
        stream.end_capture()
    }

    unsafe fn play(&self, stream: &Stream, graph: &Graph) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { enter!(self, cuGraphLaunch(graph.raw(), stream.raw())) }
    }

    fn load(&self, language: KernelLanguage, text: &str) -> Result<Code> {
        let (entries, module) = match (language, &self.tools.compiler) {
            (KernelLanguage::Ptx, _) => {
                let zero = |_| Error::Compile { log: "the source contains a zero byte".into() };
                let code = CString::new(text).map_err(zero)?;
                (ptx::entries(text), api::Module::new(&self.context, code.as_bytes_with_nul())?)
            }
            (KernelLanguage::CudaC, Some(compiler)) => {
                let compiled = compiler.compile(text)?;
                let entries = ptx::entries(&compiled.ptx);
                (entries, api::Module::new(&self.context, &compiled.machine_code)?)
            }
            _ => return Err(Error::Unsupported { what: format!("{language:?} on a CUDA device") }),
        };
        Ok(Code { module: Arc::new(module), entries })
    }

    fn function(&self, code: &Arc<Code>, function: &DeviceFunction) -> Result<Function> {
        let DeviceFunction { name, dynamic_local_bytes, .. } = function;
        let zero = |_| Error::Compile { log: format!("function {name:?}: the name contains a zero byte") };
        let raw = code.module.function(&CString::new(name.as_str()).map_err(zero)?)?;
        if *dynamic_local_bytes > 0 {
            let own = self.attribute(&raw, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
            let wanted = own.saturating_add(u64::from(*dynamic_local_bytes));
            let has = self.abilities.local_memory_bytes;
            if wanted > has {
                let what = format!("{wanted} bytes of local memory in {name} (the limit per group is {has})");
                return Err(Error::Unsupported { what });
            }
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let value = c_int::try_from(*dynamic_local_bytes).unwrap_or(c_int::MAX);
            // SAFETY: the function is alive.
            unsafe { enter!(self, cuFuncSetAttribute(raw.raw(), attribute, value)) }?;
        }
        let entry = code.entries.get(name).copied();
        let waits = entry.is_some_and(|entry| entry.waits_for_grids);
        Ok(Function { raw, entry, overlaps: waits && self.abilities.overlaps })
    }

    fn facts(&self, function: &Function) -> Result<FunctionProperties> {
        let items =
            self.attribute(&function.raw, CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        Ok(FunctionProperties {
            max_work_group_items: u32::try_from(items).unwrap_or(u32::MAX),
            parameters: function.entry.map(|entry| entry.parameters),
        })
    }
}
