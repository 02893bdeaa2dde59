//! The driver library and its functions, loaded at run time.
//!
//! Result codes are plain integers here, because newer drivers return codes that the bindings' enumeration
//! does not contain.

use crate::error::failure;
use cudarc::driver::sys::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUcontext, CUdevice,
    CUdevice_attribute, CUdeviceptr, CUevent, CUexternalMemory, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUlaunchConfig, CUmemPoolProps, CUmemoryPool, CUmodule, CUstream,
    CUstreamCaptureMode, CUuuid,
};
use ragtag_hal::Result;
use ragtag_stream::{Library, functions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ops::Deref;

/// File names of the driver library.
pub(super) const LIBRARIES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };
/// Oldest supported CUDA version, 12.2. It provides all required functions and accepts the PTX in the
/// repository.
const OLDEST_VERSION: i32 = 12_020;

/// Reason why no driver can be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Missing {
    #[error("NVIDIA's driver is not there: {0}")]
    Library(String),
    #[error("NVIDIA's driver lacks {0}")]
    Function(&'static str),
    #[error("NVIDIA's driver is too old: it supports CUDA {}, CUDA {} is needed", version(*.0), version(OLDEST_VERSION))]
    Version(i32),
    #[error("NVIDIA's driver refuses: {0}")]
    Refused(String),
}

/// Formats a CUDA version number: 12020 becomes `12.2`.
pub(crate) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

functions! {
    /// Functions of the driver, by name.
    Table {
        cuInit(c_uint) -> c_uint;
        cuGetErrorName(c_uint, *mut *const c_char) -> c_uint;
        cuDeviceGetCount(*mut c_int) -> c_uint;
        cuDeviceGet(*mut CUdevice, c_int) -> c_uint;
        cuDeviceGetName(*mut c_char, c_int, CUdevice) -> c_uint;
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice) -> c_uint;
        cuDeviceTotalMem_v2(*mut usize, CUdevice) -> c_uint;
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice) -> c_uint;
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice) -> c_uint;
        cuDevicePrimaryCtxSetFlags_v2(CUdevice, c_uint) -> c_uint;
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) -> c_uint;
        cuDevicePrimaryCtxRelease_v2(CUdevice) -> c_uint;
        cuCtxSetCurrent(CUcontext) -> c_uint;
        cuCtxEnablePeerAccess(CUcontext, c_uint) -> c_uint;
        cuMemGetInfo_v2(*mut usize, *mut usize) -> c_uint;
        cuMemAlloc_v2(*mut CUdeviceptr, usize) -> c_uint;
        cuMemFree_v2(CUdeviceptr) -> c_uint;
        cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps) -> c_uint;
        cuMemPoolDestroy(CUmemoryPool) -> c_uint;
        cuMemPoolTrimTo(CUmemoryPool, usize) -> c_uint;
        cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> c_uint;
        cuMemFreeAsync(CUdeviceptr, CUstream) -> c_uint;
        cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> c_uint;
        cuMemHostUnregister(*mut c_void) -> c_uint;
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint) -> c_uint;
        cuImportExternalMemory(*mut CUexternalMemory, *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) -> c_uint;
        cuExternalMemoryGetMappedBuffer(*mut CUdeviceptr, CUexternalMemory, *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC) -> c_uint;
        cuDestroyExternalMemory(CUexternalMemory) -> c_uint;
        cuStreamCreate(*mut CUstream, c_uint) -> c_uint;
        cuStreamDestroy_v2(CUstream) -> c_uint;
        cuStreamSynchronize(CUstream) -> c_uint;
        cuStreamWaitEvent(CUstream, CUevent, c_uint) -> c_uint;
        cuEventCreate(*mut CUevent, c_uint) -> c_uint;
        cuEventDestroy_v2(CUevent) -> c_uint;
        cuEventRecord(CUevent, CUstream) -> c_uint;
        cuEventQuery(CUevent) -> c_uint;
        cuEventSynchronize(CUevent) -> c_uint;
        cuEventElapsedTime(*mut f32, CUevent, CUevent) -> c_uint;
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> c_uint;
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> c_uint;
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) -> c_uint;
        cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream) -> c_uint;
        cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> c_uint;
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode) -> c_uint;
        cuStreamEndCapture(CUstream, *mut CUgraph) -> c_uint;
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong) -> c_uint;
        cuGraphDestroy(CUgraph) -> c_uint;
        cuGraphExecDestroy(CUgraphExec) -> c_uint;
        cuGraphLaunch(CUgraphExec, CUstream) -> c_uint;
        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void) -> c_uint;
        cuModuleUnload(CUmodule) -> c_uint;
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> c_uint;
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction) -> c_uint;
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int) -> c_uint;
    }
}

/// The loaded and initialised driver library.
pub(crate) struct Functions {
    table: Table,
    version: i32,
    library: Library,
}

impl Deref for Functions {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Functions {
    /// Loads the driver library and initialises the driver.
    pub(crate) fn load() -> std::result::Result<Self, Missing> {
        Self::load_one_of(LIBRARIES)
    }

    /// Returns the library names that [`Functions::load`] tries.
    pub(crate) fn tried() -> Vec<String> {
        LIBRARIES.iter().map(|&name| name.into()).collect()
    }

    pub(super) fn load_one_of(names: &[&str]) -> std::result::Result<Self, Missing> {
        let mut why = Vec::new();
        for name in names {
            // SAFETY: this is the driver's library. Loading it runs only its own initialisers.
            match unsafe { Library::load(name.as_ref()) } {
                Ok(library) => return Self::start(library),
                Err(error) => why.push(error),
            }
        }
        Err(Missing::Library(why.join("; ")))
    }

    fn start(library: Library) -> std::result::Result<Self, Missing> {
        // The version is checked before the other functions are looked up, because an old driver lacks some
        // of them.
        let version = {
            type Ask = unsafe extern "C" fn(*mut c_int) -> c_uint;
            // SAFETY: the signature matches the driver's header.
            let ask = unsafe { library.symbol::<Ask>("cuDriverGetVersion") };
            let ask = ask.ok_or(Missing::Function("cuDriverGetVersion"))?;
            let mut version = 0;
            // SAFETY: the call writes one number.
            match unsafe { ask(&mut version) } {
                0 => version,
                code => return Err(Missing::Refused(format!("cuDriverGetVersion failed with code {code}"))),
            }
        };
        if version < OLDEST_VERSION {
            return Err(Missing::Version(version));
        }
        let table = Table::of(library).map_err(Missing::Function)?;
        let functions = Self { table, version, library };
        // SAFETY: the flags are zero, as the function requires.
        let started = functions.check("cuInit", unsafe { (functions.cuInit)(0) });
        started.map_err(|error| Missing::Refused(error.to_string()))?;
        Ok(functions)
    }

    /// Returns the library, for looking up functions that some supported drivers lack.
    pub(super) fn library(&self) -> Library {
        self.library
    }

    /// Returns the CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// Converts a result code to a result.
    pub(crate) fn check(&self, call: &str, code: c_uint) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the call writes a pointer to a static string of the driver.
        let named = unsafe { (self.cuGetErrorName)(code, &mut name) };
        let known = named == 0 && !name.is_null();
        // SAFETY: the driver returned success, so the string ends with a zero.
        let name = known.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        Err(failure(call, code, name.as_deref()))
    }
}

/// Calls a function of the driver and checks its result: `check!(functions, cuInit(0))`.
macro_rules! check {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let functions: &$crate::api::Functions = $functions;
        let code = (functions.$name)($($argument),*);
        functions.check(stringify!($name), code)
    }};
}

/// Works like `check!`, but first makes the context of `$of` current on the calling thread.
macro_rules! enter {
    ($of:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $of.enter().and_then(|functions| $crate::api::check!(functions, $name($($argument),*)))
    };
}
pub(crate) use {check, enter};

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn versions_are_formatted_as_users_write_them() {
        assert_eq!(
            (version(12_020), version(13_000), version(11_080)),
            ("12.2".into(), "13.0".into(), "11.8".into())
        );
        let old = Missing::Version(11_040).to_string();
        assert!(old.contains("11.4") && old.contains("12.2"), "{old}");
    }

    #[test]
    fn a_missing_or_unrelated_library_is_named() {
        let missing = Functions::load_one_of(&["libragtag-no-such-driver.so.1"]).err();
        assert!(
            matches!(&missing, Some(Missing::Library(why)) if why.contains("libragtag-no-such-driver")),
            "{missing:?}"
        );
        assert!(matches!(Functions::load_one_of(&[]), Err(Missing::Library(_))));
        if cfg!(target_os = "linux") {
            let other = Functions::load_one_of(&["libc.so.6"]).err();
            assert_eq!(other, Some(Missing::Function("cuDriverGetVersion")));
        }
    }

    /// Checks that the error for a driver that is too old contains the driver's version. A stand-in library
    /// reports CUDA 11.4.
    #[test]
    fn a_driver_that_is_too_old_is_named() {
        if !cfg!(unix) || std::process::Command::new("cc").arg("--version").output().is_err() {
            test_support::skip!("C compiler", "cc does not start");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("old.c"), folder.path().join("libold.so"));
        std::fs::write(&source, "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }")
            .unwrap();
        let mut compiler = std::process::Command::new("cc");
        let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
        assert!(built.success());
        let old = Functions::load_one_of(&[library.to_str().unwrap()]).err();
        assert_eq!(old, Some(Missing::Version(11_040)));
    }
}
