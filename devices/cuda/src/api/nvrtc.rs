//! NVRTC, NVIDIA's CUDA C++ compiler in the form of a library.

use super::toolkit_places;
use ragtag_hal::{Error, Result};
use ragtag_stream::{CompilerCalls, Library, functions};
use std::ffi::{c_char, c_int, c_void};

/// Library names, newest first. Each name contains a major version of CUDA.
const LIBRARIES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
};
/// First major version that supports compute capability 9.0.
const OLDEST_MAJOR: i32 = 12;

/// Handle of an NVRTC program.
type Handle = *mut c_void;

functions! {
    /// Functions of the library.
    Functions {
        nvrtcVersion(*mut c_int, *mut c_int) -> c_int;
        nvrtcGetNumSupportedArchs(*mut c_int) -> c_int;
        nvrtcGetSupportedArchs(*mut c_int) -> c_int;
        nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
        nvrtcDestroyProgram(*mut Handle) -> c_int;
        nvrtcCompileProgram(Handle, c_int, *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize(Handle, *mut usize) -> c_int;
        nvrtcGetProgramLog(Handle, *mut c_char) -> c_int;
        nvrtcGetPTXSize(Handle, *mut usize) -> c_int;
        nvrtcGetPTX(Handle, *mut c_char) -> c_int;
        nvrtcGetCUBINSize(Handle, *mut usize) -> c_int;
        nvrtcGetCUBIN(Handle, *mut c_char) -> c_int;
    }
}

/// The loaded compiler.
pub(crate) struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    /// Supported compute capabilities: 10 × major + minor.
    architectures: Vec<i32>,
}

impl Nvrtc {
    /// Loads the newest compiler whose code a driver for CUDA `driver_version` accepts. The compiler's major
    /// version must not exceed the driver's major CUDA version.
    pub(crate) fn find(driver_version: i32) -> Option<Self> {
        toolkit_places(LIBRARIES).into_iter().find_map(|name| {
            // SAFETY: this is NVIDIA's compiler. Loading it runs only its own initialisers.
            let library = unsafe { Library::load(&name) }.ok()?;
            let nvrtc = Self::of(library)?;
            let (major, minor) = nvrtc.version;
            let fits = (OLDEST_MAJOR..=driver_version / 1000).contains(&major);
            tracing::debug!(library = %name.display(), major, minor, fits, "NVRTC");
            fits.then_some(nvrtc)
        })
    }

    fn of(library: Library) -> Option<Self> {
        let functions = Functions::of(library).ok()?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: each call writes numbers through the pointers that it receives.
        let codes = unsafe {
            [
                (functions.nvrtcVersion)(&mut major, &mut minor),
                (functions.nvrtcGetNumSupportedArchs)(&mut count),
            ]
        };
        let mut architectures = vec![0; usize::try_from(count).ok().filter(|_| codes == [0, 0])?];
        // SAFETY: the call writes as many numbers as the library reported.
        let code = unsafe { (functions.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) };
        (code == 0).then_some(Self { functions, version: (major, minor), architectures })
    }

    /// Returns the major and minor version.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Returns true if NVRTC supports this compute capability.
    pub(crate) fn knows(&self, (major, minor): (i32, i32)) -> bool {
        self.architectures.contains(&(10 * major + minor))
    }

    /// Compiles a source to PTX and machine code.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the log if the compilation fails.
    pub(crate) fn compile(&self, text: &str, options: &[String]) -> Result<(String, Vec<u8>)> {
        let functions = &self.functions;
        let calls = CompilerCalls {
            create: functions.nvrtcCreateProgram,
            destroy: functions.nvrtcDestroyProgram,
            compile: functions.nvrtcCompileProgram,
            log_bytes: functions.nvrtcGetProgramLogSize,
            log: functions.nvrtcGetProgramLog,
        };
        // SAFETY: all calls belong to the same compiler library, which is never unloaded.
        let compiled = unsafe { calls.compile(c"kernels.cu", text, options) }?;
        let ptx = compiled.output(functions.nvrtcGetPTXSize, functions.nvrtcGetPTX);
        let cubin = compiled.output(functions.nvrtcGetCUBINSize, functions.nvrtcGetCUBIN);
        let nothing = || Error::Compile { log: "NVRTC produced no code".into() };
        ptx.zip(cubin).map(|(ptx, cubin)| (text_of(ptx), cubin)).ok_or_else(nothing)
    }
}

fn text_of(mut bytes: Vec<u8>) -> String {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_a_zero() {
        assert_eq!((text_of(b"ab\0c".to_vec()), text_of(b"ab".to_vec())), ("ab".into(), "ab".into()));
        assert_eq!(text_of(Vec::new()), "");
    }

    #[test]
    fn a_source_compiles_or_the_log_has_the_reason() {
        // Any driver version works, because the test runs no code on a device.
        let Some(nvrtc) = Nvrtc::find(99_000) else {
            test_support::skip!("NVRTC", "not installed");
            return;
        };
        assert!(nvrtc.knows((9, 0)) && !nvrtc.knows((1, 0)) && nvrtc.version().0 >= OLDEST_MAJOR);
        let options = ["--gpu-architecture=sm_90a".to_string()];
        let text = "extern \"C\" __global__ void add(float *a, unsigned n) { if (threadIdx.x < n) a[threadIdx.x] += 1; }";
        let (ptx, cubin) = nvrtc.compile(text, &options).unwrap();
        assert!(ptx.contains(".entry add(") && cubin.starts_with(b"\x7fELF"));
        let error = nvrtc.compile("extern \"C\" __global__ void add(", &options).unwrap_err();
        assert!(matches!(&error, Error::Compile { log } if log.contains("kernels.cu(1)")), "{error}");
        assert!(nvrtc.compile("\0", &options).is_err());
    }
}
