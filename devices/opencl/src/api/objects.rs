//! Owned OpenCL objects: contexts, memory, programs, kernels and events.
//!
//! This module does not depend on queues.

use super::{SpirVLoader, UnifiedMemory, check, create, missing, status};
use cl3::ext::cl_platform_id;
use opencl3::context::context::CL_CONTEXT_PLATFORM;
use opencl3::device::Device;
use opencl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_START,
};
use opencl3::kernel::{CL_KERNEL_COMPILE_WORK_GROUP_SIZE, CL_KERNEL_NUM_ARGS, CL_KERNEL_WORK_GROUP_SIZE};
use opencl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER, CL_MEM_USE_HOST_PTR,
    cl_buffer_region,
};
use opencl3::program::{
    CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_BUILD_LOG, CL_PROGRAM_DEVICES,
    CL_PROGRAM_NUM_DEVICES,
};
use opencl3::types::{
    cl_context, cl_device_id, cl_event, cl_int, cl_kernel, cl_mem, cl_program, cl_uint, cl_ulong,
};
use ragtag_hal::{Error, Result};
use std::ffi::{CStr, c_void};
use std::ptr;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($raw:ty), $release:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(pub(super) $raw);

        // SAFETY: OpenCL objects may be used on any thread. Only clSetKernelArg must not run concurrently on
        // the same object, and the method that calls it takes `&mut self`.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let release = || {
                    // SAFETY: the handle is valid and owned, and it is not used after this call.
                    unsafe { status!($release(self.0)) }
                };
                if let Err(error) = release() {
                    tracing::debug!(%error, "cannot release an object");
                }
            }
        }
    };
}
pub(super) use handle;

/// Queries a numeric property of an object.
macro_rules! ask {
    ($question:ident($($of:expr),+), $answer:ty) => {{
        let mut value = <$answer>::default();
        let (bytes, to) = (size_of_val(&value), (&raw mut value).cast());
        // SAFETY: the object is valid, and the property has this type.
        unsafe { status!($question($($of),+, bytes, to, ptr::null_mut())) }.map(|()| value)
    }};
}

handle! {
    /// An OpenCL context, which several devices of one platform share.
    Context(cl_context), clReleaseContext
}
handle! {
    /// A buffer or a sub-buffer.
    Mem(cl_mem), clReleaseMemObject
}
handle! {
    /// A program that is built for one device.
    Program(cl_program), clReleaseProgram
}
handle! {
    /// A kernel function and its current arguments.
    Kernel(cl_kernel), clReleaseKernel
}
handle! {
    /// The completion event of a command.
    Event(cl_event), clReleaseEvent
}

impl Context {
    pub(crate) fn new(platform: cl_platform_id, devices: &[Device]) -> Result<Self> {
        let ids: Vec<cl_device_id> = devices.iter().map(Device::id).collect();
        let properties = [CL_CONTEXT_PLATFORM, platform as isize, 0];
        // SAFETY: the lists have the given lengths, the properties end with zero, and there is no callback.
        let context = unsafe {
            create!(clCreateContext(
                properties.as_ptr(),
                ids.len() as cl_uint,
                ids.as_ptr(),
                None,
                ptr::null_mut(),
            ))
        };
        context.map(Self)
    }
}

impl Mem {
    /// Creates a buffer. Some drivers commit the memory of a buffer only on first use.
    pub(crate) fn new(context: &Context, bytes: usize) -> Result<Self> {
        // SAFETY: the context is valid, and the buffer does not use host memory.
        unsafe { create!(clCreateBuffer(context.0, CL_MEM_READ_WRITE, bytes, ptr::null_mut())) }.map(Self)
    }

    /// Creates a buffer that uses existing host memory.
    ///
    /// # Safety
    /// The memory from `pointer` to `pointer + bytes` stays valid for the lifetime of the buffer. Nothing
    /// else accesses it while a command uses it.
    pub(crate) unsafe fn over(context: &Context, pointer: *mut u8, bytes: usize) -> Result<Self> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        // SAFETY: the context is valid, and the caller guarantees that the memory is valid.
        unsafe { create!(clCreateBuffer(context.0, flags, bytes, pointer.cast())) }.map(Self)
    }

    /// Creates a sub-buffer, which keeps the whole buffer alive.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<Self> {
        let region = cl_buffer_region { origin: offset, size: bytes };
        // SAFETY: the memory is valid, and the driver checks the range.
        let part = unsafe {
            create!(clCreateSubBuffer(
                self.0,
                CL_MEM_READ_WRITE,
                CL_BUFFER_CREATE_TYPE_REGION,
                (&raw const region).cast(),
            ))
        };
        part.map(Self)
    }
}

/// A block of memory that has the same address on the host and on the device.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    context: cl_context,
    pointer: *mut c_void,
    /// Functions of Intel's extension, which free the block. `None` means that the block is shared virtual
    /// memory as defined by the OpenCL standard.
    unified: Option<UnifiedMemory>,
}

// SAFETY: the block is plain memory, and its context may be used on any thread.
unsafe impl Send for SharedBlock {}
// SAFETY: as above. The contents of the block are accessed only through raw pointers.
unsafe impl Sync for SharedBlock {}

impl SharedBlock {
    /// Allocates fine-grained shared virtual memory (OpenCL 2.0). Returns `None` if the allocation fails.
    pub(crate) fn fine_grained(context: &Context, bytes: usize) -> Result<Option<Self>> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
        // SAFETY: the context is valid. An alignment of 0 means the alignment of the largest data type.
        let pointer = unsafe { super::library()?.clSVMAlloc(context.0, flags, bytes, 0) };
        let pointer = pointer.ok_or_else(|| missing("clSVMAlloc"))?;
        Ok((!pointer.is_null()).then_some(Self { context: context.0, pointer, unified: None }))
    }

    /// Allocates host memory with Intel's unified shared memory.
    pub(crate) fn unified(context: &Context, memory: UnifiedMemory, bytes: usize) -> Result<Self> {
        let mut code = 0;
        // SAFETY: the context is valid, and there are no properties.
        let pointer = unsafe { (memory.allocate)(context.0, ptr::null(), bytes, 0, &raw mut code) };
        check("clHostMemAllocINTEL", code)?;
        Ok(Self { context: context.0, pointer, unified: Some(memory) })
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.cast()
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        match self.unified {
            // SAFETY: the same extension allocated the block, and no command uses it any more.
            Some(memory) => drop(unsafe { (memory.free)(self.context, self.pointer) }),
            None => {
                // SAFETY: clSVMAlloc allocated the block in this context, and no command uses it any more.
                unsafe {
                    let library = super::library();
                    library.map(|library| library.clSVMFree(self.context, self.pointer)).ok();
                }
            }
        }
    }
}

impl Program {
    pub(crate) fn from_source(context: &Context, text: &str) -> Result<Self> {
        let (pointer, bytes) = (text.as_ptr().cast(), text.len());
        // SAFETY: the call reads one text of the given length.
        unsafe { create!(clCreateProgramWithSource(context.0, 1, &raw const pointer, &raw const bytes)) }
            .map(Self)
    }

    pub(crate) fn from_spir_v(context: &Context, loader: SpirVLoader, binary: &[u8]) -> Result<Self> {
        let (pointer, bytes) = (binary.as_ptr().cast(), binary.len());
        // SAFETY: the call reads a binary of the given length.
        let program = unsafe {
            match loader {
                SpirVLoader::Core => create!(clCreateProgramWithIL(context.0, pointer, bytes)),
                SpirVLoader::Extension(create) => {
                    let mut code = 0;
                    let program = create(context.0, pointer, bytes, &raw mut code);
                    check("clCreateProgramWithILKHR", code).map(|()| program)
                }
            }
        };
        program.map(Self)
    }

    /// Loads a binary that [`Program::binary`] returned for the same device and driver.
    pub(crate) fn from_binary(context: &Context, device: Device, binary: &[u8]) -> Result<Self> {
        let (id, pointer, bytes, mut loaded) = (device.id(), binary.as_ptr(), binary.len(), 0);
        // SAFETY: the call reads one device and one binary of the given length.
        let program = unsafe {
            create!(clCreateProgramWithBinary(
                context.0,
                1,
                &raw const id,
                &raw const bytes,
                &raw const pointer,
                &raw mut loaded,
            ))
        };
        let program = program.map(Self)?;
        check("clCreateProgramWithBinary", loaded).map(|()| program)
    }

    /// Compiles and links the program for a device.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the device's build log if the build fails.
    pub(crate) fn build(&self, device: Device, options: &CStr) -> Result<()> {
        let id = device.id();
        // SAFETY: the call reads one device, and options that end with a zero. There is no callback.
        let built = unsafe {
            status!(clBuildProgram(self.0, 1, &raw const id, options.as_ptr(), None, ptr::null_mut()))
        };
        built.map_err(|error| match error {
            Error::Api { call, code } => {
                let log = self.log(device).unwrap_or_default();
                Error::Compile {
                    log: format!("{call} failed with code {code}\n{log}").trim_end().to_string(),
                }
            }
            other => other,
        })
    }

    fn log(&self, device: Device) -> Result<String> {
        let ask = |bytes, to: *mut c_void, size: *mut usize| {
            let (id, what) = (device.id(), CL_PROGRAM_BUILD_LOG);
            // SAFETY: the call returns only the size, or writes at most the given number of bytes.
            unsafe { status!(clGetProgramBuildInfo(self.0, id, what, bytes, to, size)) }
        };
        let mut bytes = 0;
        ask(0, ptr::null_mut(), &raw mut bytes)?;
        let mut log = vec![0u8; bytes];
        ask(bytes, log.as_mut_ptr().cast(), ptr::null_mut())?;
        Ok(String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_string())
    }

    /// Returns the driver's binary for the device, or `None` if the driver provides no binary.
    pub(crate) fn binary(&self, device: Device) -> Result<Option<Vec<u8>>> {
        // A program belongs to all devices of its context, even if it was built for only one of them.
        let mut count: cl_uint = 0;
        self.info(CL_PROGRAM_NUM_DEVICES, std::slice::from_mut(&mut count))?;
        let mut devices: Vec<cl_device_id> = vec![ptr::null_mut(); count as usize];
        self.info(CL_PROGRAM_DEVICES, &mut devices)?;
        let mut sizes = vec![0usize; count as usize];
        self.info(CL_PROGRAM_BINARY_SIZES, &mut sizes)?;
        let at = devices.iter().position(|&id| id == device.id());
        let Some((at, bytes)) = at.map(|at| (at, sizes[at])).filter(|&(_, bytes)| bytes > 0) else {
            return Ok(None);
        };
        // Every entry gets a buffer, because some drivers write to entries that they should skip.
        let mut binaries: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0u8; bytes]).collect();
        let mut places: Vec<*mut u8> = binaries.iter_mut().map(|binary| binary.as_mut_ptr()).collect();
        self.info(CL_PROGRAM_BINARIES, &mut places)?;
        let binary = binaries.swap_remove(at);
        Ok((binary.len() == bytes).then_some(binary))
    }

    fn info<T: Copy>(&self, what: cl_uint, values: &mut [T]) -> Result<()> {
        let bytes = size_of_val(values);
        // SAFETY: the values are plain integers or pointers and have the given size. Each pointer has room
        // for its binary.
        unsafe { status!(clGetProgramInfo(self.0, what, bytes, values.as_mut_ptr().cast(), ptr::null_mut())) }
    }
}

impl Kernel {
    pub(crate) fn new(program: &Program, name: &CStr) -> Result<Self> {
        // SAFETY: the program is valid, and the name ends with zero.
        unsafe { create!(clCreateKernel(program.0, name.as_ptr())) }.map(Self)
    }

    /// Returns the number of parameters of the kernel.
    pub(crate) fn parameters(&self) -> Result<usize> {
        Ok(ask!(clGetKernelInfo(self.0, CL_KERNEL_NUM_ARGS), cl_uint)? as usize)
    }

    /// Returns the work group size that the source requires, or zeros if the source does not require one.
    pub(crate) fn required_group(&self, device: Device) -> Result<[usize; 3]> {
        let question = CL_KERNEL_COMPILE_WORK_GROUP_SIZE;
        ask!(clGetKernelWorkGroupInfo(self.0, device.id(), question), [usize; 3])
    }

    /// Returns the maximum number of work items in a group of this kernel.
    pub(crate) fn group_limit(&self, device: Device) -> Result<usize> {
        ask!(clGetKernelWorkGroupInfo(self.0, device.id(), CL_KERNEL_WORK_GROUP_SIZE), usize)
    }

    pub(crate) fn set_memory(&mut self, index: usize, memory: &Mem) -> Result<()> {
        // SAFETY: the argument is a handle and has the given size.
        unsafe {
            status!(clSetKernelArg(
                self.0,
                index as cl_uint,
                size_of::<cl_mem>(),
                (&raw const memory.0).cast()
            ))
        }
    }

    pub(crate) fn set_word(&mut self, index: usize, word: u32) -> Result<()> {
        // SAFETY: the argument is a word and has the given size.
        unsafe {
            status!(clSetKernelArg(self.0, index as cl_uint, size_of::<u32>(), (&raw const word).cast()))
        }
    }
}

impl Event {
    /// Blocks until the command has ended. Some drivers spin instead of sleeping.
    ///
    /// # Errors
    /// Returns the error of the command.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the list has one valid event.
        let waited = unsafe { status!(clWaitForEvents(1, &raw const self.0)) };
        // For a failed command, the call returns only a generic code. The status of the event is the specific
        // code.
        let code = self.status()?;
        if code < 0 { check("a command", code) } else { waited }
    }

    /// Returns true if the command has ended or failed. [`Event::wait`] returns the error of a failed
    /// command.
    pub(crate) fn has_passed(&self) -> bool {
        self.status().map_or(true, |code| code <= CL_COMPLETE)
    }

    fn status(&self) -> Result<cl_int> {
        ask!(clGetEventInfo(self.0, CL_EVENT_COMMAND_EXECUTION_STATUS), cl_int)
    }

    /// Returns the start of the command in nanoseconds on the device's clock.
    pub(crate) fn start_ns(&self) -> Result<u64> {
        self.profile(CL_PROFILING_COMMAND_START)
    }

    /// Returns the end of the command in nanoseconds on the device's clock.
    pub(crate) fn end_ns(&self) -> Result<u64> {
        self.profile(CL_PROFILING_COMMAND_END)
    }

    fn profile(&self, what: cl_uint) -> Result<u64> {
        ask!(clGetEventProfilingInfo(self.0, what), cl_ulong)
    }
}
