//! hiprtc, the compiler from HIP C++ to code objects.
//!
//! It may abort the process: version 5.2 does so for unknown architectures. Does not know which process it
//! runs in.

use super::library::{self, CompilerFunctions, Version, compiler_names};
use super::symbols::Handle;
use ragtag_hal::{Error, Result};
use std::ffi::{CString, c_char};
use std::ptr;

/// Most bytes of a log or a code object. Larger sizes are treated as invalid.
const MAX_BYTES: usize = 1 << 30;

/// A code object that the runtime can load.
pub(crate) type Code = Vec<u8>;

/// The loaded compiler.
pub(crate) struct Compiler {
    functions: CompilerFunctions,
    /// Name under which the library was found.
    pub(crate) library: String,
}

/// Converts a return code of hiprtc to a result. Its codes differ from the runtime's.
fn check(function: &str, returned: i32) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Error::Api { call: function.into(), code: returned.into() }) }
}

macro_rules! call {
    ($functions:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let returned = ($functions.$function)($($argument),*);
        check(stringify!($function), returned)
    }};
}

impl Compiler {
    /// Loads the compiler for a runtime.
    ///
    /// # Errors
    /// The names that were tried.
    pub(crate) fn beside(runtime: &str, version: Version) -> std::result::Result<Self, Vec<String>> {
        Self::first_of(&compiler_names(runtime, version))
    }

    /// Loads the first of these libraries that contains a compiler.
    ///
    /// # Errors
    /// The names that were tried.
    pub(crate) fn first_of(names: &[String]) -> std::result::Result<Self, Vec<String>> {
        let library::CompilerLibrary { functions, name } = library::compiler(names)?;
        Ok(Self { functions, library: name })
    }

    /// Returns the version, for cache keys.
    pub(crate) fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        let said = unsafe { call!(self.functions, hiprtcVersion(&raw mut major, &raw mut minor)) };
        said.map_or_else(|_| "?".into(), |()| format!("{major}.{minor}"))
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log.
    pub(crate) fn compile(&self, text: &str, options: &[String]) -> Result<Code> {
        let c_string = |text: &str| {
            CString::new(text)
                .map_err(|_| Error::Compile { log: "the source or an option contains a zero byte".into() })
        };
        let options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(&self.functions, &c_string(text)?)?;
        // SAFETY: a valid program, and as many options as stated.
        let compiled = unsafe {
            call!(
                self.functions,
                hiprtcCompileProgram(program.handle, options.len() as i32, options.as_ptr())
            )
        };
        match compiled {
            Ok(()) => program.code(),
            Err(error) => Err(Error::Compile { log: program.log().unwrap_or_else(|_| error.to_string()) }),
        }
    }
}

/// A source being compiled.
struct Program<'a> {
    functions: &'a CompilerFunctions,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(functions: &'a CompilerFunctions, text: &CString) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: strings that end with a zero, and no headers.
        unsafe {
            call!(
                functions,
                hiprtcCreateProgram(
                    &raw mut handle,
                    text.as_ptr(),
                    c"ragtag.hip".as_ptr(),
                    0,
                    ptr::null(),
                    ptr::null()
                )
            )
        }?;
        Ok(Self { functions, handle })
    }

    fn log(&self) -> Result<String> {
        let mut bytes = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self.functions, hiprtcGetProgramLogSize(self.handle, &raw mut bytes)) }?;
        let mut log = room(bytes)?;
        // SAFETY: there is room for as many bytes as it reported.
        unsafe { call!(self.functions, hiprtcGetProgramLog(self.handle, log.as_mut_ptr().cast())) }?;
        Ok(String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_string())
    }

    fn code(&self) -> Result<Code> {
        let mut bytes = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self.functions, hiprtcGetCodeSize(self.handle, &raw mut bytes)) }?;
        let mut code = room(bytes)?;
        // SAFETY: there is room for as many bytes as it reported.
        unsafe { call!(self.functions, hiprtcGetCode(self.handle, code.as_mut_ptr().cast())) }?;
        Ok(code)
    }
}

/// Allocates a buffer for an answer.
///
/// # Errors
/// If the size is implausible.
fn room(bytes: usize) -> Result<Vec<u8>> {
    if bytes > MAX_BYTES {
        return Err(Error::Compile { log: format!("hiprtc reports an implausible size of {bytes} bytes") });
    }
    Ok(vec![0; bytes])
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: a program that was created and is not used any more. A failure has no remedy.
        let _ = unsafe { (self.functions.hiprtcDestroyProgram)(&raw mut self.handle) };
    }
}
