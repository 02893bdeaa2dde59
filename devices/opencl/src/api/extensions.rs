//! Extension functions, which are looked up by name on a platform: command buffers, SPIR-V before OpenCL 2.1,
//! and Intel's unified shared memory.

use super::commands::{BufferPart, Queue, Range3};
use super::{Kernel, check, library, missing};
use cl3::ext::{
    cl_command_buffer_khr, cl_platform_id, clCommandCopyBufferKHR_fn, clCommandFillBufferKHR_fn,
    clCommandNDRangeKernelKHR_fn, clCreateCommandBufferKHR_fn, clCreateProgramWithILKHR_fn,
    clEnqueueCommandBufferKHR_fn, clFinalizeCommandBufferKHR_fn, clHostMemAllocINTEL_fn, clMemFreeINTEL_fn,
    clReleaseCommandBufferKHR_fn,
};
use opencl3::types::{cl_event, cl_uint};
use ragtag_hal::Result;
use std::ffi::{CStr, c_void};
use std::ptr;

/// Returns the address of an extension function. The extension's specification defines the function's type.
fn address(platform: cl_platform_id, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the platform is valid, and the name ends with zero.
    let address =
        unsafe { library().ok()?.clGetExtensionFunctionAddressForPlatform(platform, name.as_ptr()) };
    address.filter(|address| !address.is_null())
}

/// Looks up an extension function and converts it to the type of the field that receives it.
macro_rules! function {
    ($platform:expr, $name:literal, $type:ty) => {{
        let address = address($platform, $name)?;
        // SAFETY: the platform returned the function of that name, whose type the specification defines.
        (unsafe { std::mem::transmute::<*mut c_void, $type>(address) })?
    }};
}

/// The function type of the nullable function pointer type `T`.
type Of<T> = <T as IntoIterator>::Item;

/// Functions of `cl_khr_command_buffer`, version 1.0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandBuffers {
    create: Of<clCreateCommandBufferKHR_fn>,
    release: Of<clReleaseCommandBufferKHR_fn>,
    finalize: Of<clFinalizeCommandBufferKHR_fn>,
    enqueue: Of<clEnqueueCommandBufferKHR_fn>,
    launch: Of<clCommandNDRangeKernelKHR_fn>,
    copy: Of<clCommandCopyBufferKHR_fn>,
    fill: Of<clCommandFillBufferKHR_fn>,
}

impl CommandBuffers {
    /// Looks up the functions. The device must support version 1.0 or later of the extension, because earlier
    /// versions have different function signatures.
    pub(crate) fn of(platform: cl_platform_id) -> Option<Self> {
        Some(Self {
            create: function!(platform, c"clCreateCommandBufferKHR", clCreateCommandBufferKHR_fn),
            release: function!(platform, c"clReleaseCommandBufferKHR", clReleaseCommandBufferKHR_fn),
            finalize: function!(platform, c"clFinalizeCommandBufferKHR", clFinalizeCommandBufferKHR_fn),
            enqueue: function!(platform, c"clEnqueueCommandBufferKHR", clEnqueueCommandBufferKHR_fn),
            launch: function!(platform, c"clCommandNDRangeKernelKHR", clCommandNDRangeKernelKHR_fn),
            copy: function!(platform, c"clCommandCopyBufferKHR", clCommandCopyBufferKHR_fn),
            fill: function!(platform, c"clCommandFillBufferKHR", clCommandFillBufferKHR_fn),
        })
    }
}

/// A recorded command buffer. Its commands run in the order of recording, because its queue runs in order.
#[derive(Debug)]
pub(crate) struct CommandBuffer {
    functions: CommandBuffers,
    buffer: cl_command_buffer_khr,
}

// SAFETY: the buffer may be used on any thread, but only one thread may record at a time. The methods that
// record take `&mut self`.
unsafe impl Send for CommandBuffer {}
// SAFETY: as above.
unsafe impl Sync for CommandBuffer {}

impl CommandBuffer {
    /// Creates an empty command buffer.
    pub(crate) fn new(functions: CommandBuffers, queue: &Queue) -> Result<Self> {
        let mut code = 0;
        // SAFETY: the call reads one valid queue, and there are no properties.
        let buffer = unsafe { (functions.create)(1, &raw const queue.0, ptr::null(), &raw mut code) };
        check("clCreateCommandBufferKHR", code)?;
        if buffer.is_null() {
            Err(missing("clCreateCommandBufferKHR"))
        } else {
            Ok(Self { functions, buffer })
        }
    }

    pub(crate) fn launch(&mut self, kernel: &Kernel, size: &Range3) -> Result<()> {
        let (none, no_mutable, no_sync) = (ptr::null_mut(), ptr::null_mut(), ptr::null());
        let (global, local) = (size.global.as_ptr(), size.local.as_ptr());
        // SAFETY: the command is recorded for the buffer's own queue. Each list has one size per axis. The
        // call copies the current arguments.
        let code = unsafe {
            (self.functions.launch)(
                self.buffer,
                ptr::null_mut(),
                ptr::null(),
                kernel.0,
                size.axes(),
                ptr::null(),
                global,
                local,
                0,
                no_sync,
                none,
                no_mutable,
            )
        };
        check("clCommandNDRangeKernelKHR", code)
    }

    pub(crate) fn copy(&mut self, from: BufferPart<'_>, to: BufferPart<'_>) -> Result<()> {
        // SAFETY: the command is recorded for the buffer's own queue. The driver checks the ranges.
        let code = unsafe {
            (self.functions.copy)(
                self.buffer,
                ptr::null_mut(),
                ptr::null(),
                from.memory.0,
                to.memory.0,
                from.offset,
                to.offset,
                from.bytes,
                0,
                ptr::null(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("clCommandCopyBufferKHR", code)
    }

    pub(crate) fn fill(&mut self, to: BufferPart<'_>, word: u32) -> Result<()> {
        // SAFETY: the command is recorded for the buffer's own queue. The call copies the pattern, and the
        // driver checks the range.
        let code = unsafe {
            (self.functions.fill)(
                self.buffer,
                ptr::null_mut(),
                ptr::null(),
                to.memory.0,
                (&raw const word).cast(),
                size_of::<u32>(),
                to.offset,
                to.bytes,
                0,
                ptr::null(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("clCommandFillBufferKHR", code)
    }

    /// Ends the recording.
    pub(crate) fn finalize(&mut self) -> Result<()> {
        // SAFETY: the buffer is valid.
        check("clFinalizeCommandBufferKHR", unsafe { (self.functions.finalize)(self.buffer) })
    }

    pub(super) fn enqueue(&self, count: cl_uint, after: *const cl_event, event: *mut cl_event) -> Result<()> {
        // SAFETY: the buffer is finalised, and it runs on the queue for which it was recorded. The caller
        // passes a valid list.
        let code = unsafe { (self.functions.enqueue)(0, ptr::null_mut(), self.buffer, count, after, event) };
        check("clEnqueueCommandBufferKHR", code)
    }
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is valid and owned. The driver keeps it alive while it runs.
        let code = unsafe { (self.functions.release)(self.buffer) };
        if let Err(error) = check("clReleaseCommandBufferKHR", code) {
            tracing::debug!(%error, "cannot release a command buffer");
        }
    }
}

/// Functions of `cl_intel_unified_shared_memory` for allocations in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnifiedMemory {
    pub(super) allocate: Of<clHostMemAllocINTEL_fn>,
    pub(super) free: Of<clMemFreeINTEL_fn>,
}

impl UnifiedMemory {
    pub(crate) fn of(platform: cl_platform_id) -> Option<Self> {
        Some(Self {
            allocate: function!(platform, c"clHostMemAllocINTEL", clHostMemAllocINTEL_fn),
            free: function!(platform, c"clMemFreeINTEL", clMemFreeINTEL_fn),
        })
    }
}

/// Function through which a platform loads SPIR-V.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpirVLoader {
    /// The core function of OpenCL 2.1 and later.
    Core,
    /// The function of the extension `cl_khr_il_program`.
    Extension(Of<clCreateProgramWithILKHR_fn>),
}

impl SpirVLoader {
    /// Looks up the function of the extension. Returns `None` if the platform lacks the extension.
    pub(crate) fn extension(platform: cl_platform_id) -> Option<Self> {
        Some(Self::Extension(function!(platform, c"clCreateProgramWithILKHR", clCreateProgramWithILKHR_fn)))
    }
}
