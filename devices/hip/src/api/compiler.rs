//! hiprtc, the compiler from HIP C++ to code objects.
//!
//! It may abort the process: version 5.2 does so for unknown architectures. Does not know which process it
//! runs in.

use super::library::{self, CompilerFunctions, Version, compiler_names};
use ragtag_hal::{Error, Result};
use ragtag_stream::CompilerCalls;

/// A code object that the runtime can load.
pub(crate) type Code = Vec<u8>;

/// The loaded compiler.
pub(crate) struct Compiler {
    functions: CompilerFunctions,
    /// Name under which the library was found.
    pub(crate) library: String,
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
        match unsafe { (self.functions.hiprtcVersion)(&raw mut major, &raw mut minor) } {
            0 => format!("{major}.{minor}"),
            _ => "?".into(),
        }
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log.
    pub(crate) fn compile(&self, text: &str, options: &[String]) -> Result<Code> {
        let functions = &self.functions;
        let calls = CompilerCalls {
            create: functions.hiprtcCreateProgram,
            destroy: functions.hiprtcDestroyProgram,
            compile: functions.hiprtcCompileProgram,
            log_bytes: functions.hiprtcGetProgramLogSize,
            log: functions.hiprtcGetProgramLog,
        };
        // SAFETY: all calls are those of one compiler, which is never unloaded.
        let compiled = unsafe { calls.compile(c"ragtag.hip", text, options) }?;
        let code = compiled.output(functions.hiprtcGetCodeSize, functions.hiprtcGetCode);
        code.ok_or_else(|| Error::Compile { log: "hiprtc produced no code".into() })
    }
}
