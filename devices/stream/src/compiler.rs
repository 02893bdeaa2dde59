//! Kernel compilers in the form of libraries: NVRTC and hiprtc, whose calls have the same signatures.

use ragtag_hal::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Maximum size of a log or of code, in bytes. A larger size is treated as an error.
const MAX_BYTES: usize = 1 << 30;

type Handle = *mut c_void;
type Texts = *const *const c_char;
/// Function that returns the size of one output of a program, such as its log.
pub type OutputBytes = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
/// Function that writes one output of a program, such as its log.
pub type Output = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// Functions of a compiler library.
#[derive(Clone, Copy, Debug)]
pub struct CompilerCalls {
    /// Creates a program from a source.
    pub create: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int,
    /// Destroys a program.
    pub destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    /// Compiles a program with options.
    pub compile: unsafe extern "C" fn(Handle, c_int, Texts) -> c_int,
    /// Returns the size of the log.
    pub log_bytes: OutputBytes,
    /// Writes the log.
    pub log: Output,
}

/// A compiled source.
#[derive(Debug)]
pub struct CompiledText {
    calls: CompilerCalls,
    handle: Handle,
}

impl CompilerCalls {
    /// Compiles a source. In the log, the source is called `name`.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the log if the compilation fails.
    ///
    /// # Safety
    /// All functions belong to the same compiler library, which stays loaded.
    pub unsafe fn compile(self, name: &CStr, text: &str, options: &[String]) -> Result<CompiledText> {
        let refused = |log: String| Error::Compile { log };
        let zero = |_| refused("the source or an option contains a zero byte".into());
        let text = CString::new(text).map_err(zero)?;
        let options = options.iter().map(|option| CString::new(option.as_str()).map_err(zero));
        let options = options.collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle = null_mut();
        // SAFETY: the strings end with a zero, and there are no headers. The call writes one handle.
        match unsafe { (self.create)(&mut handle, text.as_ptr(), name.as_ptr(), 0, null(), null()) } {
            0 => {}
            code => return Err(refused(format!("cannot create a program from the source: code {code}"))),
        }
        let compiled = CompiledText { calls: self, handle };
        // SAFETY: the program is alive. The count matches the options, and every option ends with a zero.
        match unsafe { (self.compile)(handle, options.len() as c_int, options.as_ptr()) } {
            0 => Ok(compiled),
            code => {
                Err(refused(compiled.log().unwrap_or_else(|| format!("failed with code {code} and no log"))))
            }
        }
    }
}

impl CompiledText {
    /// Reads an output of the program. `bytes` returns the size of the output, and `get` its contents.
    /// Returns `None` if either call fails.
    pub fn output(&self, bytes: OutputBytes, get: Output) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive. The call writes one number.
        let code = unsafe { bytes(self.handle, &mut size) };
        let mut out = vec![0u8; (code == 0 && (1..=MAX_BYTES).contains(&size)).then_some(size)?];
        // SAFETY: the call writes as many bytes as the compiler reported.
        let code = unsafe { get(self.handle, out.as_mut_ptr().cast()) };
        (code == 0).then_some(out)
    }

    fn log(&self) -> Option<String> {
        let log = self.output(self.calls.log_bytes, self.calls.log)?;
        let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_string();
        (!log.is_empty()).then_some(log)
    }
}

impl Drop for CompiledText {
    fn drop(&mut self) {
        // SAFETY: this compiler created the program, and nothing else owns it. A failure to destroy it is
        // ignored.
        unsafe { (self.calls.destroy)(&mut self.handle) };
    }
}
