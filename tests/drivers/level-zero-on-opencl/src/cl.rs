//! Calls of Intel's OpenCL runtime for CPUs. All devices of this driver share its device and one context.

use crate::types::code::{OUT_OF_DEVICE_MEMORY, UNINITIALIZED, UNKNOWN};
use crate::types::{Handle, Result};
use cl3::OpenClRuntime;
use cl3::ext::{
    CL_DEVICE_SUB_GROUP_SIZES_INTEL, clDeviceMemAllocINTEL_fn, clEnqueueMemFillINTEL_fn,
    clEnqueueMemcpyINTEL_fn, clHostMemAllocINTEL_fn, clMemFreeINTEL_fn, clSetKernelArgMemPointerINTEL_fn,
    clSharedMemAllocINTEL_fn,
};
use cl3::kernel::{
    CL_KERNEL_LOCAL_MEM_SIZE, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, CL_KERNEL_WORK_GROUP_SIZE,
};
use cl3::program::{CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_BUILD_LOG};
use cl3::types::{cl_command_queue, cl_context, cl_device_id, cl_kernel, cl_platform_id, cl_program};
use std::env;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

/// Environment variable with the path of the runtime.
const PATH: &str = "RAGTAG_FAKE_OPENCL";
/// Name of the runtime's library, which the files in `OCL_ICD_VENDORS` name.
const LIBRARY: &str = "libintelocl.so";

/// Function type of the nullable function pointer type `T`.
type Of<T> = <T as IntoIterator>::Item;

/// The runtime, its context, and its functions for unified shared memory.
pub struct Cl {
    runtime: OpenClRuntime,
    device: cl_device_id,
    context: cl_context,
    allocate_on_device: Of<clDeviceMemAllocINTEL_fn>,
    allocate_on_host: Of<clHostMemAllocINTEL_fn>,
    allocate_shared: Of<clSharedMemAllocINTEL_fn>,
    free: Of<clMemFreeINTEL_fn>,
    copy: Of<clEnqueueMemcpyINTEL_fn>,
    fill: Of<clEnqueueMemFillINTEL_fn>,
    set_pointer: Of<clSetKernelArgMemPointerINTEL_fn>,
}

// SAFETY: OpenCL's handles are valid on every thread.
unsafe impl Send for Cl {}
// SAFETY: as above; OpenCL's functions may run on several threads at once.
unsafe impl Sync for Cl {}

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Host = 1,
    Device = 2,
    Shared = 3,
}

/// Calls an OpenCL function that returns a status. The error is OpenCL's code.
macro_rules! status {
    ($cl:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $cl.calls().$function($($argument),*) {
            Some(0) => Ok(()),
            Some(code) => Err(code),
            None => Err(MISSING),
        }
    };
}

/// Calls an OpenCL function that returns an object.
macro_rules! create {
    ($cl:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut code = MISSING;
        let object = $cl.calls().$function($($argument,)* &raw mut code);
        object.filter(|_| code == 0).ok_or(code)
    }};
}

/// Part of the names of functions that stand for Intel's matrix units.
const MATRIX_UNITS: &[u8] = b"_matrix_mad_k16";
/// OpenCL C source of these functions.
const EMULATION: &str = include_str!("matrix_units.cl");
/// Code for a function that the runtime lacks.
const MISSING: i32 = -1000;

fn said(code: i32) -> String {
    format!("OpenCL reported the error {code}")
}

/// Converts OpenCL's code to Level Zero's.
pub fn converted(code: i32) -> u32 {
    match code {
        -6..=-4 => OUT_OF_DEVICE_MEMORY,
        _ => UNKNOWN,
    }
}

/// Returns the runtime, which the first call loads.
pub fn cl() -> Result<&'static Cl> {
    static CL: OnceLock<Option<Cl>> = OnceLock::new();
    CL.get_or_init(Cl::load).as_ref().ok_or(UNINITIALIZED)
}

/// Returns the path of the runtime: the value of [`PATH`], or the first vendor's library with the right name.
fn path() -> Option<PathBuf> {
    if let Some(path) = env::var_os(PATH) {
        return Some(path.into());
    }
    let files = std::fs::read_dir(env::var_os("OCL_ICD_VENDORS")?).ok()?;
    let paths = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    paths.map(|path| PathBuf::from(path.trim())).find(|path| path.file_name().is_some_and(|n| n == LIBRARY))
}

impl Cl {
    fn load() -> Option<Self> {
        // SAFETY: the runtime's initialisers are safe to run once.
        let runtime = unsafe { OpenClRuntime::load(path()?) }.ok()?;
        let (mut platform, mut device): (cl_platform_id, cl_device_id) = (ptr::null_mut(), ptr::null_mut());
        // There is room for one platform, one device and one code. The context gets that device.
        let context = {
            (runtime.clGetPlatformIDs(1, &raw mut platform, ptr::null_mut())? == 0).then_some(())?;
            let all = cl3::device::CL_DEVICE_TYPE_ALL;
            (runtime.clGetDeviceIDs(platform, all, 1, &raw mut device, ptr::null_mut())? == 0)
                .then_some(())?;
            let mut code = 0;
            runtime.clCreateContext(
                ptr::null(),
                1,
                &raw const device,
                None,
                ptr::null_mut(),
                &raw mut code,
            )?
        };
        let address = |name: &CStr| -> Option<*mut c_void> {
            let address = runtime.clGetExtensionFunctionAddressForPlatform(platform, name.as_ptr());
            address.filter(|address| !address.is_null())
        };
        /// Looks up an extension function and converts it to the type of its field.
        macro_rules! function {
            ($name:literal, $type:ty) => {
                // SAFETY: the extension's specification defines the type of the function of this name.
                (unsafe { std::mem::transmute::<*mut c_void, $type>(address($name)?) })?
            };
        }
        Some(Self {
            device,
            context,
            allocate_on_device: function!(c"clDeviceMemAllocINTEL", clDeviceMemAllocINTEL_fn),
            allocate_on_host: function!(c"clHostMemAllocINTEL", clHostMemAllocINTEL_fn),
            allocate_shared: function!(c"clSharedMemAllocINTEL", clSharedMemAllocINTEL_fn),
            free: function!(c"clMemFreeINTEL", clMemFreeINTEL_fn),
            copy: function!(c"clEnqueueMemcpyINTEL", clEnqueueMemcpyINTEL_fn),
            fill: function!(c"clEnqueueMemFillINTEL", clEnqueueMemFillINTEL_fn),
            set_pointer: function!(c"clSetKernelArgMemPointerINTEL", clSetKernelArgMemPointerINTEL_fn),
            runtime,
        })
    }

    /// Returns OpenCL's functions.
    ///
    /// # Safety
    /// The bindings declare the functions as safe, although some arguments cause undefined behaviour. Callers
    /// must follow OpenCL's rules for each function.
    unsafe fn calls(&self) -> &OpenClRuntime {
        &self.runtime
    }

    /// Returns a property of the device that is a number, or 0.
    pub fn number(&self, property: u32) -> u64 {
        let (mut number, place) = (0u64, size_of::<u64>());
        // SAFETY: numbers have at most 64 bits.
        unsafe {
            let to = (&raw mut number).cast();
            self.calls().clGetDeviceInfo(self.device, property, place, to, ptr::null_mut());
        }
        number
    }

    fn bytes(&self, property: u32) -> Vec<u8> {
        let mut bytes = vec![0u8; 1 << 16];
        let mut length = 0;
        // SAFETY: the buffer has the stated size.
        unsafe {
            let to = bytes.as_mut_ptr().cast();
            self.calls().clGetDeviceInfo(self.device, property, bytes.len(), to, &raw mut length);
        }
        bytes.truncate(length);
        bytes
    }

    /// Returns whether the device has an extension.
    pub fn has(&self, extension: &str) -> bool {
        let all = self.bytes(cl3::device::CL_DEVICE_EXTENSIONS);
        let all = String::from_utf8_lossy(&all).into_owned();
        all.trim_end_matches('\0').split_ascii_whitespace().any(|one| one == extension)
    }

    /// Returns the sub-group sizes that the device supports.
    pub fn sub_groups(&self) -> Vec<u32> {
        let sizes = self.bytes(CL_DEVICE_SUB_GROUP_SIZES_INTEL);
        sizes.chunks_exact(8).map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]])).collect()
    }

    pub fn allocate(&self, kind: Kind, bytes: usize, alignment: usize) -> Result<usize> {
        let (mut code, none, alignment) = (0, ptr::null(), alignment as u32);
        // SAFETY: the device belongs to the context.
        let address = unsafe {
            match kind {
                Kind::Host => (self.allocate_on_host)(self.context, none, bytes, alignment, &raw mut code),
                Kind::Device => (self.allocate_on_device)(
                    self.context,
                    self.device,
                    none,
                    bytes,
                    alignment,
                    &raw mut code,
                ),
                Kind::Shared => {
                    (self.allocate_shared)(self.context, self.device, none, bytes, alignment, &raw mut code)
                }
            }
        };
        if code == 0 && !address.is_null() { Ok(address as usize) } else { Err(OUT_OF_DEVICE_MEMORY) }
    }

    /// Frees memory that [`Cl::allocate`] returned.
    pub fn free(&self, address: usize) {
        // SAFETY: the caller passes the start of a live allocation.
        unsafe { (self.free)(self.context, address as Handle) };
    }
}

/// Program for the device.
pub struct Program(cl_program);

// SAFETY: OpenCL's handles are valid on every thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(cl) = cl() {
            // SAFETY: the program is valid and owned.
            let _ = unsafe { cl.calls().clReleaseProgram(self.0) };
        }
    }
}

impl Program {
    /// Compiles SPIR-V with the given specialisation constants.
    ///
    /// # Errors
    /// Returns the compiler's log.
    pub fn from_spirv(
        cl: &Cl,
        code: &[u8],
        options: &str,
        constants: &[(u32, Vec<u8>)],
    ) -> std::result::Result<Self, String> {
        // SAFETY: the call reads the code. Each constant has the size that the module declares.
        let program = unsafe {
            let program = create!(cl, clCreateProgramWithIL(cl.context, code.as_ptr().cast(), code.len()));
            let program = Self(program.map_err(said)?);
            for (id, value) in constants {
                let to = value.as_ptr().cast();
                status!(cl, clSetProgramSpecializationConstant(program.0, *id, value.len(), to))
                    .map_err(said)?;
            }
            program
        };
        if code.windows(MATRIX_UNITS.len()).any(|part| part == MATRIX_UNITS) {
            return program.linked(cl, options);
        }
        program.built(cl, options)
    }

    /// Compiles the program and links it with the emulation of the matrix units.
    fn linked(self, cl: &Cl, options: &str) -> std::result::Result<Self, String> {
        let (start, bytes) = (EMULATION.as_ptr().cast::<c_char>(), EMULATION.len());
        // SAFETY: there is one source with its length.
        let emulation = unsafe {
            create!(cl, clCreateProgramWithSource(cl.context, 1, &raw const start, &raw const bytes))
        };
        let emulation = Self(emulation.map_err(said)?).compiled(cl, "-cl-std=CL3.0")?;
        let own = self.compiled(cl, options)?;
        let programs = [own.0, emulation.0];
        // SAFETY: both programs are compiled for the device.
        let linked = unsafe {
            let (device, options, none) = (&raw const cl.device, c"".as_ptr(), ptr::null_mut());
            let (count, programs) = (programs.len() as u32, programs.as_ptr());
            create!(cl, clLinkProgram(cl.context, 1, device, options, count, programs, None, none))
        };
        linked.map(Self).map_err(said)
    }

    fn compiled(self, cl: &Cl, options: &str) -> std::result::Result<Self, String> {
        let options = CString::new(options).map_err(|error| error.to_string())?;
        // SAFETY: the device belongs to the program's context. There are no headers.
        let compiled = unsafe {
            let (device, options, none) = (&raw const cl.device, options.as_ptr(), ptr::null_mut());
            let (headers, names) = (ptr::null(), ptr::null_mut());
            status!(cl, clCompileProgram(self.0, 1, device, options, 0, headers, names, None, none))
        };
        compiled.map_err(|_| self.log(cl)).map(|()| self)
    }

    /// Loads a binary that [`Program::binary`] returned.
    ///
    /// # Errors
    /// Returns the compiler's log.
    pub fn from_binary(cl: &Cl, binary: &[u8]) -> std::result::Result<Self, String> {
        let (start, bytes) = (binary.as_ptr(), binary.len());
        // SAFETY: there is one binary for one device.
        let program = unsafe {
            let none = ptr::null_mut();
            let (device, start, bytes) = (&raw const cl.device, &raw const start, &raw const bytes);
            create!(cl, clCreateProgramWithBinary(cl.context, 1, device, bytes, start, none))
        };
        Self(program.map_err(said)?).built(cl, "")
    }

    fn built(self, cl: &Cl, options: &str) -> std::result::Result<Self, String> {
        let options = CString::new(options).map_err(|error| error.to_string())?;
        // SAFETY: the device belongs to the program's context, and the options end with zero.
        let built = unsafe {
            let (device, none) = (&raw const cl.device, ptr::null_mut());
            status!(cl, clBuildProgram(self.0, 1, device, options.as_ptr(), None, none))
        };
        built.map_err(|_| self.log(cl)).map(|()| self)
    }

    fn log(&self, cl: &Cl) -> String {
        let mut log = vec![0u8; 1 << 16];
        let mut length = 0;
        // SAFETY: the buffer has the stated size.
        unsafe {
            let (to, room) = (log.as_mut_ptr().cast(), log.len());
            let what = CL_PROGRAM_BUILD_LOG;
            cl.calls().clGetProgramBuildInfo(self.0, cl.device, what, room, to, &raw mut length);
        }
        log.truncate(length);
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
    }

    /// Returns the device's binary.
    pub fn binary(&self, cl: &Cl) -> Result<Vec<u8>> {
        let mut bytes = 0usize;
        // SAFETY: the program has one device, so there is one size and one pointer to a buffer of this size.
        unsafe {
            let (word, to) = (size_of::<usize>(), (&raw mut bytes).cast());
            status!(cl, clGetProgramInfo(self.0, CL_PROGRAM_BINARY_SIZES, word, to, ptr::null_mut()))
                .map_err(converted)?;
            let mut binary = vec![0u8; bytes];
            let mut start = binary.as_mut_ptr();
            let to = (&raw mut start).cast();
            status!(cl, clGetProgramInfo(self.0, CL_PROGRAM_BINARIES, word, to, ptr::null_mut()))
                .map_err(converted)?;
            Ok(binary)
        }
    }
}

/// Argument of a launch.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Address in unified shared memory.
    Address(usize),
    /// Null in place of an address.
    Null,
    /// Value of a parameter.
    Value(Vec<u8>),
    /// Size of local memory, in bytes.
    Local(usize),
}

/// Kernel of a program. Its arguments are part of the object.
pub struct Kernel(cl_kernel);

// SAFETY: OpenCL's handles are valid on every thread. Callers do not share the object.
unsafe impl Send for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Ok(cl) = cl() {
            // SAFETY: the kernel is valid and owned.
            let _ = unsafe { cl.calls().clReleaseKernel(self.0) };
        }
    }
}

impl Kernel {
    pub fn new(cl: &Cl, program: &Program, name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: the program is built and the name ends with zero.
        unsafe { create!(cl, clCreateKernel(program.0, name.as_ptr())) }.ok().map(Self)
    }

    fn number(&self, cl: &Cl, property: u32) -> u64 {
        let (mut number, room) = (0u64, size_of::<u64>());
        // SAFETY: the property is a number of 64 bits.
        unsafe {
            let to = (&raw mut number).cast();
            cl.calls().clGetKernelWorkGroupInfo(self.0, cl.device, property, room, to, ptr::null_mut());
        }
        number
    }

    /// Returns the maximum number of work items per group.
    pub fn max_group(&self, cl: &Cl) -> u64 {
        self.number(cl, CL_KERNEL_WORK_GROUP_SIZE)
    }

    /// Returns the size of the kernel's own local memory, in bytes.
    pub fn local_bytes(&self, cl: &Cl) -> u64 {
        self.number(cl, CL_KERNEL_LOCAL_MEM_SIZE)
    }

    /// Returns the sub-group size for groups of this size, or 0.
    pub fn sub_group(&self, cl: &Cl, group: [usize; 3]) -> usize {
        let (mut number, room) = (0usize, size_of::<usize>());
        // SAFETY: the input has three sizes, and the property is a size.
        unsafe {
            let (from, to) = (group.as_ptr().cast(), (&raw mut number).cast());
            let (what, bytes) = (CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, size_of_val(&group));
            let none = ptr::null_mut();
            cl.calls().clGetKernelSubGroupInfo(self.0, cl.device, what, bytes, from, room, to, none);
        }
        number
    }

    fn set(&self, cl: &Cl, at: u32, argument: &Argument) -> std::result::Result<(), i32> {
        // SAFETY: the driver checks the index and the size.
        unsafe {
            match argument {
                Argument::Address(address) => {
                    let code = (cl.set_pointer)(self.0, at, *address as *const c_void);
                    if code == 0 { Ok(()) } else { Err(code) }
                }
                Argument::Null => {
                    let null = ptr::null::<c_void>();
                    status!(cl, clSetKernelArg(self.0, at, size_of::<usize>(), (&raw const null).cast()))
                }
                Argument::Value(value) => {
                    status!(cl, clSetKernelArg(self.0, at, value.len(), value.as_ptr().cast()))
                }
                Argument::Local(bytes) => status!(cl, clSetKernelArg(self.0, at, *bytes, ptr::null())),
            }
        }
    }
}

/// In-order queue.
pub struct Queue(cl_command_queue);

// SAFETY: OpenCL's handles are valid on every thread.
unsafe impl Send for Queue {}

impl Queue {
    pub fn new(cl: &Cl) -> Option<Self> {
        // SAFETY: the device belongs to the context, and there are no properties.
        let queue =
            unsafe { create!(cl, clCreateCommandQueueWithProperties(cl.context, cl.device, ptr::null())) };
        queue.ok().map(Self)
    }

    /// Blocks until all commands have ended.
    pub fn finish(&self, cl: &Cl) -> std::result::Result<(), i32> {
        // SAFETY: the queue is valid.
        unsafe { status!(cl, clFinish(self.0)) }
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges must be valid until the copy has ended.
    pub unsafe fn copy(&self, cl: &Cl, to: usize, from: usize, bytes: usize) -> std::result::Result<(), i32> {
        let (none, events) = (ptr::null(), ptr::null_mut());
        // SAFETY: the caller guarantees the ranges.
        let code = unsafe { (cl.copy)(self.0, 0, to as _, from as _, bytes, 0, none, events) };
        if code == 0 { Ok(()) } else { Err(code) }
    }

    /// Enqueues a fill.
    ///
    /// # Safety
    /// The range must be valid until the fill has ended.
    pub unsafe fn fill(
        &self,
        cl: &Cl,
        to: usize,
        pattern: &[u8],
        bytes: usize,
    ) -> std::result::Result<(), i32> {
        let (start, length) = (pattern.as_ptr().cast(), pattern.len());
        let (none, events) = (ptr::null(), ptr::null_mut());
        // SAFETY: the call copies the pattern, and the caller guarantees the range.
        let code = unsafe { (cl.fill)(self.0, to as _, start, length, bytes, 0, none, events) };
        if code == 0 { Ok(()) } else { Err(code) }
    }

    /// Enqueues a launch with these arguments.
    ///
    /// # Safety
    /// The kernel must only access valid memory until the launch has ended. No other thread uses the kernel.
    pub unsafe fn launch(
        &self,
        cl: &Cl,
        kernel: &Kernel,
        arguments: &[Argument],
        groups: [u32; 3],
        group: [u32; 3],
    ) -> std::result::Result<(), i32> {
        (0..).zip(arguments).try_for_each(|(at, argument)| kernel.set(cl, at, argument))?;
        let local = group.map(|items| items as usize);
        let global = [0, 1, 2].map(|axis| groups[axis] as usize * local[axis]);
        // SAFETY: each list has three sizes. The caller guarantees the memory.
        unsafe {
            let (offset, events) = (ptr::null(), ptr::null_mut());
            let (global, local) = (global.as_ptr(), local.as_ptr());
            status!(
                cl,
                clEnqueueNDRangeKernel(self.0, kernel.0, 3, offset, global, local, 0, ptr::null(), events)
            )
        }
    }
}
