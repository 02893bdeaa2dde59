//! NVRTC, NVIDIA's compiler of CUDA C++ as a library.

use super::toolkit_places;
use ragtag_hal::{Error, Result};
use ragtag_stream::{Library, functions};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// The names under which it is known, newer ones first. A library's number is that of CUDA's major version.
const LIBRARIES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
};
/// The first major version that knows compute capability 9.0.
const OLDEST_MAJOR: i32 = 12;

/// A program of the compiler's.
type Handle = *mut c_void;

functions! {
    /// The library's functions.
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

/// The compiler.
pub(crate) struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    /// Compute capabilities: ten times the major number and the minor one.
    architectures: Vec<i32>,
}

impl Nvrtc {
    /// The newest compiler whose code a driver for this version of CUDA takes: of its own major version, or an older one.
    pub(crate) fn find(driver_version: i32) -> Option<Self> {
        toolkit_places(LIBRARIES).into_iter().find_map(|name| {
            // SAFETY: NVIDIA's compiler; loading it runs its own initialisers, which is what it is for.
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
        // SAFETY: write one number each.
        let codes = unsafe {
            [
                (functions.nvrtcVersion)(&mut major, &mut minor),
                (functions.nvrtcGetNumSupportedArchs)(&mut count),
            ]
        };
        let mut architectures = vec![0; usize::try_from(count).ok().filter(|_| codes == [0, 0])?];
        // SAFETY: writes as many numbers as it said.
        let code = unsafe { (functions.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) };
        (code == 0).then_some(Self { functions, version: (major, minor), architectures })
    }

    /// Major and minor number.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Whether it compiles for a compute capability.
    pub(crate) fn knows(&self, (major, minor): (i32, i32)) -> bool {
        self.architectures.contains(&(10 * major + minor))
    }

    /// The PTX and the machine code of a text.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log.
    pub(crate) fn compile(&self, text: &str, options: &[String]) -> Result<(String, Vec<u8>)> {
        let strings = |what: &str| CString::new(what).map_err(|_| Error::invalid("a text with a zero in it"));
        let source = strings(text)?;
        let options = options.iter().map(|option| strings(option)).collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Program { functions: &self.functions, raw: null_mut() };
        // SAFETY: the text ends with a zero; no headers. Writes one handle.
        let code = unsafe {
            let name = c"kernels.cu".as_ptr();
            (self.functions.nvrtcCreateProgram)(&mut program.raw, source.as_ptr(), name, 0, null(), null())
        };
        program.check("nvrtcCreateProgram", code)?;
        // SAFETY: the program lives; so many options, each of which ends with a zero.
        let code = unsafe {
            (self.functions.nvrtcCompileProgram)(program.raw, options.len() as c_int, options.as_ptr())
        };
        program.check("nvrtcCompileProgram", code)?;
        let Functions { nvrtcGetPTXSize, nvrtcGetPTX, nvrtcGetCUBINSize, nvrtcGetCUBIN, .. } =
            &self.functions;
        let ptx = program.read(*nvrtcGetPTXSize, *nvrtcGetPTX);
        let cubin = program.read(*nvrtcGetCUBINSize, *nvrtcGetCUBIN);
        match (ptx, cubin) {
            (Some(ptx), Some(cubin)) => Ok((text_of(ptx), cubin)),
            _ => Err(Error::Compile { log: format!("nothing came of it; {}", program.log()) }),
        }
    }
}

fn text_of(mut bytes: Vec<u8>) -> String {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}

type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// A text on its way.
struct Program<'a> {
    functions: &'a Functions,
    raw: Handle,
}

impl Program<'_> {
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(Error::Compile { log: format!("{call} failed with code {code}: {}", self.log()) })
    }

    fn log(&self) -> String {
        let (size, get) = (self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog);
        let log = if self.raw.is_null() { None } else { self.read(size, get) };
        log.map(text_of)
            .map(|log| log.trim().to_string())
            .filter(|log| !log.is_empty())
            .unwrap_or("no log".into())
    }

    /// What one function says how large it is, and another gives.
    fn read(&self, size: Size, get: Get) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program lives; writes one number.
        let code = unsafe { size(self.raw, &mut bytes) };
        let mut out = vec![0u8; (code == 0 && bytes > 0).then_some(bytes)?];
        // SAFETY: writes as many bytes as it said.
        let code = unsafe { get(self.raw, out.as_mut_ptr().cast()) };
        (code == 0).then_some(out)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made by this compiler, and owned alone.
            unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.raw) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_a_zero() {
        assert_eq!((text_of(b"ab\0c".to_vec()), text_of(b"ab".to_vec())), ("ab".into(), "ab".into()));
        assert_eq!(text_of(Vec::new()), "");
    }

    #[test]
    fn a_text_is_compiled_or_the_log_says_why_not() {
        // Any driver's version will do: nothing is run.
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
