//! Loads the functions of CUDA's driver API and of NVRTC that the stand-in calls. Their signatures are those
//! of the CUDA 12.2 headers.

use hip_shim::symbols::Handle;
use hip_shim::symbols::code::NOT_FOUND;
use libloading::Library;
use std::env;
use std::ffi::{OsString, c_char};
use std::path::PathBuf;

/// Defines a table of functions and the function that loads it.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $(fn $name:ident($($type:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // CUDA's names
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl $table {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the list has the signatures of CUDA's headers; the library is never unloaded.
                    $($name: *unsafe { library.get(stringify!($name)) }?,)*
                })
            }
        }
    };
}

table! {
    /// Functions of CUDA's driver API.
    Driver {
        fn cuInit(u32);
        fn cuDeviceGetCount(*mut i32);
        fn cuDeviceGetName(*mut c_char, i32, i32);
        fn cuDeviceGetAttribute(*mut i32, i32, i32);
        fn cuDeviceTotalMem_v2(*mut usize, i32);
        fn cuDeviceGetUuid(*mut [u8; 16], i32);
        fn cuDeviceGetPCIBusId(*mut c_char, i32, i32);
        fn cuDevicePrimaryCtxRetain(*mut Handle, i32);
        fn cuCtxSetCurrent(Handle);
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemAlloc_v2(*mut Handle, usize);
        fn cuMemFree_v2(Handle);
        fn cuMemAllocAsync(*mut Handle, usize, Handle);
        fn cuMemFreeAsync(Handle, Handle);
        fn cuMemHostRegister_v2(Handle, usize, u32);
        fn cuMemHostUnregister(Handle);
        fn cuMemHostGetDevicePointer_v2(*mut Handle, Handle, u32);
        fn cuMemcpyAsync(Handle, *const u8, usize, Handle);
        fn cuMemsetD32Async(Handle, u32, usize, Handle);
        fn cuStreamCreate(*mut Handle, u32);
        fn cuStreamDestroy_v2(Handle);
        fn cuStreamSynchronize(Handle);
        fn cuStreamWaitEvent(Handle, Handle, u32);
        fn cuEventCreate(*mut Handle, u32);
        fn cuEventDestroy_v2(Handle);
        fn cuEventRecord(Handle, Handle);
        fn cuEventQuery(Handle);
        fn cuEventSynchronize(Handle);
        fn cuEventElapsedTime(*mut f32, Handle, Handle);
        fn cuModuleLoadData(*mut Handle, *const u8);
        fn cuModuleUnload(Handle);
        fn cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        fn cuFuncGetAttribute(*mut i32, i32, Handle);
        fn cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *const Handle, *mut Handle);
        fn cuStreamBeginCapture_v2(Handle, i32);
        fn cuStreamEndCapture(Handle, *mut Handle);
        fn cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        fn cuGraphLaunch(Handle, Handle);
        fn cuGraphDestroy(Handle);
        fn cuGraphExecDestroy(Handle);
    }
}

table! {
    /// Functions of NVRTC, the run-time compiler.
    Nvrtc {
        fn nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, i32, *const Handle, *const Handle);
        fn nvrtcDestroyProgram(*mut Handle);
        fn nvrtcCompileProgram(Handle, i32, *const *const c_char);
        fn nvrtcGetProgramLogSize(Handle, *mut usize);
        fn nvrtcGetProgramLog(Handle, *mut c_char);
        fn nvrtcGetCUBINSize(Handle, *mut usize);
        fn nvrtcGetCUBIN(Handle, *mut c_char);
    }
}

/// Loads the first library in `places` that exists. The library is never unloaded.
fn load(places: impl IntoIterator<Item = OsString>) -> Option<&'static Library> {
    // SAFETY: the initialisers of CUDA's libraries run in every program that uses CUDA; they are sound.
    let library = places.into_iter().find_map(|place| unsafe { Library::new(place) }.ok())?;
    Some(Box::leak(Box::new(library)))
}

/// Loads the function table of CUDA's driver.
///
/// # Errors
/// Returns `NOT_FOUND` if the driver is not installed or lacks a function of the table.
pub(crate) fn driver() -> Result<Driver, i32> {
    let library = load(["libcuda.so.1", "nvcuda.dll"].map(OsString::from)).ok_or(NOT_FOUND)?;
    Driver::of(library).map_err(|_| NOT_FOUND)
}

/// Loads the function table of NVRTC.
///
/// # Errors
/// Returns an error if NVRTC is not installed or lacks a function of the table.
pub(crate) fn nvrtc() -> Result<Nvrtc, String> {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let folders = named.chain([PathBuf::from("/usr/local/cuda")]).map(|root| root.join("lib64"));
    let elsewhere = folders.flat_map(|folder| names.map(|name| folder.join(name).into_os_string()));
    let library = load(names.map(OsString::from).into_iter().chain(elsewhere))
        .ok_or("NVRTC is not installed (install it or set CUDA_HOME)")?;
    Nvrtc::of(library).map_err(|error| error.to_string())
}
