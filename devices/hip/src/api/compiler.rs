//! hiprtc, which compiles HIP C++ to code objects.
//!
//! hiprtc may abort the process. For example, version 5.2 aborts on an unknown architecture.

use super::library::{self, CompilerFunctions, Version, compiler_names};
use ragtag_hal::{Error, Result};
use ragtag_stream::CompilerCalls;

/// A code object that the runtime can load.
pub(crate) type Code = Vec<u8>;

/// The loaded compiler.
pub(crate) struct Compiler {
    functions: CompilerFunctions,
    /// Name under which the library was loaded.
    pub(crate) library: String,
}

impl Compiler {
    /// Loads the compiler that belongs to a runtime.
    ///
    /// # Errors
    /// Returns the names that were tried.
    pub(crate) fn beside(runtime: &str, version: Version) -> std::result::Result<Self, Vec<String>> {
        Self::first_of(&compiler_names(runtime, version))
    }

    /// Loads the first library in `names` that contains a compiler.
    ///
    /// # Errors
    /// Returns the names that were tried.
    pub(crate) fn first_of(names: &[String]) -> std::result::Result<Self, Vec<String>> {
        let library::CompilerLibrary { functions, name } = library::compiler(names)?;
        Ok(Self { functions, library: name })
    }

    /// Returns the version, which is part of the cache keys.
    pub(crate) fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two numbers.
        match unsafe { (self.functions.hiprtcVersion)(&raw mut major, &raw mut minor) } {
            0 => format!("{major}.{minor}"),
            _ => "?".into(),
        }
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the log if the compilation fails.
    pub(crate) fn compile(&self, text: &str, options: &[String]) -> Result<Code> {
        let functions = &self.functions;
        let calls = CompilerCalls {
            create: functions.hiprtcCreateProgram,
            destroy: functions.hiprtcDestroyProgram,
            compile: functions.hiprtcCompileProgram,
            log_bytes: functions.hiprtcGetProgramLogSize,
            log: functions.hiprtcGetProgramLog,
        };
        // SAFETY: all calls belong to the same compiler library, which is never unloaded.
        let compiled = unsafe { calls.compile(c"ragtag.hip", text, options) }?;
        let code = compiled.output(functions.hiprtcGetCodeSize, functions.hiprtcGetCode);
        code.ok_or_else(|| Error::Compile { log: "hiprtc produced no code".into() })
    }
}
