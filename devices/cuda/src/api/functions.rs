//! The driver's library and its functions, found when the program runs.
//!
//! Result codes are plain numbers here: a newer driver has codes that the bindings' enumeration lacks.

use crate::error::failure;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUlaunchConfig, CUmemPoolProps, CUmemoryPool, CUmodule, CUstream,
    CUstreamCaptureMode, CUuuid,
};
use libloading::Library;
use ragtag_hal::Result;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

/// The names under which the library is known.
pub(super) const LIBRARIES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };
/// The oldest version that has all of these functions and takes the committed PTX: CUDA 12.2.
const OLDEST_VERSION: i32 = 12_020;

/// Why there is no driver.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Missing {
    #[error("NVIDIA's driver is not there: {0}")]
    Library(String),
    #[error("NVIDIA's driver lacks {0}")]
    Function(&'static str),
    #[error("NVIDIA's driver is too old: it is for CUDA {}, CUDA {} is needed", version(*.0), version(OLDEST_VERSION))]
    Version(i32),
    #[error("NVIDIA's driver refuses: {0}")]
    Refused(String),
}

/// A version of CUDA as people write it.
pub(crate) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions of the driver, by their names.
        #[allow(non_snake_case)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
            version: i32,
            library: Library,
        }

        impl Functions {
            /// All names, for stand-ins.
            #[cfg(test)]
            pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn find(library: Library) -> std::result::Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the driver's header declares the function like this; the library stays loaded as long
                        // as the pointer is there.
                        let found = unsafe { library.get(name) };
                        *found.map_err(|_| Missing::Function(stringify!($name)))?
                    },)*
                    version: 0,
                    library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(c_uint, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(CUdevice, c_uint);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
    cuMemPoolDestroy(CUmemoryPool);
    cuMemPoolTrimTo(CUmemoryPool, usize);
    cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    cuMemFreeAsync(CUdeviceptr, CUstream);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    cuGraphDestroy(CUgraph);
    cuGraphExecDestroy(CUgraphExec);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
}

impl Functions {
    /// Loads the driver's library and starts the driver.
    pub(crate) fn load() -> std::result::Result<Self, Missing> {
        Self::load_one_of(LIBRARIES)
    }

    /// The names that [`Functions::load`] tries.
    pub(crate) fn tried() -> Vec<String> {
        LIBRARIES.iter().map(|&name| name.into()).collect()
    }

    pub(super) fn load_one_of(names: &[&str]) -> std::result::Result<Self, Missing> {
        let mut why = Vec::new();
        for name in names {
            // SAFETY: the driver's library; loading it runs its own initialisers, which is what it is for.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Self::start(library),
                // The loader's own words are the error's source.
                Err(error) => {
                    why.push(error.source().map_or_else(|| error.to_string(), |why| why.to_string()))
                }
            }
        }
        Err(Missing::Library(why.join("; ")))
    }

    fn start(library: Library) -> std::result::Result<Self, Missing> {
        // The version comes first: an old driver lacks functions.
        let version = {
            type Ask = unsafe extern "C" fn(*mut c_int) -> c_uint;
            // SAFETY: as for all functions.
            let ask = unsafe { library.get::<Ask>(b"cuDriverGetVersion\0") };
            let ask = ask.map_err(|_| Missing::Function("cuDriverGetVersion"))?;
            let mut version = 0;
            // SAFETY: writes one number.
            match unsafe { ask(&mut version) } {
                0 => version,
                code => return Err(Missing::Refused(format!("cuDriverGetVersion failed with code {code}"))),
            }
        };
        if version < OLDEST_VERSION {
            return Err(Missing::Version(version));
        }
        let functions = Self { version, ..Self::find(library)? };
        // SAFETY: no flags are defined.
        let started = functions.check("cuInit", unsafe { (functions.cuInit)(0) });
        started.map_err(|error| Missing::Refused(error.to_string()))?;
        Ok(functions)
    }

    /// A function that the oldest driver that is taken need not have.
    ///
    /// # Safety
    /// The driver's header declares a function of this name like `T`, and what is returned is called no longer than `self`
    /// lives.
    pub(super) unsafe fn find_newer<T: Copy>(&self, name: &CStr) -> Option<T> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<T>(name.to_bytes_with_nul()) };
        found.ok().map(|function| *function)
    }

    /// The version of CUDA that the driver is for: 1000 times the major number and ten times the minor one.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// The error of a call, if its code says that there is one.
    pub(crate) fn check(&self, call: &str, code: c_uint) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: writes one pointer, to a string of the driver's that stays.
        let named = unsafe { (self.cuGetErrorName)(code, &mut name) };
        let known = named == 0 && !name.is_null();
        // SAFETY: as the driver said: a string that ends with a zero.
        let name = known.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        Err(failure(call, code, name.as_deref()))
    }
}

/// Calls a function of the driver and looks at its result: `check!(functions, cuInit(0))`.
macro_rules! check {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let functions: &$crate::api::Functions = $functions;
        let code = (functions.$name)($($argument),*);
        functions.check(stringify!($name), code)
    }};
}
pub(crate) use check;

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(
            (version(12_020), version(13_000), version(11_080)),
            ("12.2".into(), "13.0".into(), "11.8".into())
        );
        let old = Missing::Version(11_040).to_string();
        assert!(old.contains("11.4") && old.contains("12.2"), "{old}");
    }

    #[test]
    fn alibrary_that_is_missing_or_another_is_named() {
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

    /// The library of a driver for CUDA 11.4, as far as it is asked.
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
