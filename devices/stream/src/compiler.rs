//! A compiler of kernels that is a library: NVRTC and hiprtc have the same calls.
//!
//! This module must not know whose compiler it is.

use ragtag_hal::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Most bytes of a log or of code: beyond that a compiler's answer is not believed.
const MAX_BYTES: usize = 1 << 30;

type Handle = *mut c_void;
type Texts = *const *const c_char;
/// Says how many bytes an output of a program has.
pub type OutputBytes = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
/// Writes an output of a program.
pub type Output = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// The calls of a compiler.
#[derive(Clone, Copy, Debug)]
pub struct CompilerCalls {
    /// Takes a text.
    pub create: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int,
    /// Gives it back.
    pub destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    /// Compiles it with options.
    pub compile: unsafe extern "C" fn(Handle, c_int, Texts) -> c_int,
    /// The size of the log.
    pub log_bytes: OutputBytes,
    /// The log.
    pub log: Output,
}

/// A text that was compiled.
#[derive(Debug)]
pub struct CompiledText {
    calls: CompilerCalls,
    handle: Handle,
}

impl CompilerCalls {
    /// Compiles a text, which the log calls `name`.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log.
    ///
    /// # Safety
    /// All calls are those of one compiler, which stays loaded.
    pub unsafe fn compile(self, name: &CStr, text: &str, options: &[String]) -> Result<CompiledText> {
        let refused = |log: String| Error::Compile { log };
        let zero = |_| refused("a text or an option with a zero in it".into());
        let text = CString::new(text).map_err(zero)?;
        let options = options.iter().map(|option| CString::new(option.as_str()).map_err(zero));
        let options = options.collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle = null_mut();
        // SAFETY: texts that end with a zero, and no headers; writes one handle.
        match unsafe { (self.create)(&mut handle, text.as_ptr(), name.as_ptr(), 0, null(), null()) } {
            0 => {}
            code => return Err(refused(format!("no program was made of the text: code {code}"))),
        }
        let compiled = CompiledText { calls: self, handle };
        // SAFETY: the program lives; so many options, each of which ends with a zero.
        match unsafe { (self.compile)(handle, options.len() as c_int, options.as_ptr()) } {
            0 => Ok(compiled),
            code => Err(refused(compiled.log().unwrap_or_else(|| format!("code {code} and no log")))),
        }
    }
}

impl CompiledText {
    /// What one function says how large it is, and another gives; nothing if either fails.
    pub fn output(&self, bytes: OutputBytes, get: Output) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program lives; writes one number.
        let code = unsafe { bytes(self.handle, &mut size) };
        let mut out = vec![0u8; (code == 0 && (1..=MAX_BYTES).contains(&size)).then_some(size)?];
        // SAFETY: writes as many bytes as it said.
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
        // SAFETY: made by this compiler, and owned alone. There is nobody to tell if it fails.
        unsafe { (self.calls.destroy)(&mut self.handle) };
    }
}
