//! Code objects. Each source is compiled once per device, and the result is cached on disk.
//!
//! This module does not depend on kernels or modules.

use crate::api::{Code, Compiler};
use crate::child::{self, Request};
use crate::probe::Found;
use ragtag_hal::Result;
use ragtag_hal::cache::{Folder, Key, key};
use std::ffi::OsString;

/// Compiler options other than the architecture. Contraction is disabled, because the sources fuse operations
/// explicitly. No option trades accuracy for speed.
pub(crate) const OPTIONS: [&str; 3] = ["-std=c++17", "-O3", "-ffp-contract=off"];

/// Compiles and caches the code objects of a device.
pub(crate) struct Programs {
    compiler: &'static Compiler,
    /// Command that starts the compiler process. If it is empty, this process compiles.
    command: Vec<OsString>,
    folder: Option<Folder>,
    options: Vec<String>,
    /// Key that identifies the driver and the compiler.
    fingerprint: Key,
}

impl Programs {
    pub(crate) fn new(found: &Found, command: Vec<OsString>, folder: Option<Folder>) -> Self {
        let architecture = format!("--offload-arch={}", found.target);
        let compiler = found.compiler;
        Self {
            compiler,
            command,
            folder,
            options: OPTIONS.into_iter().map(String::from).chain([architecture]).collect(),
            fingerprint: key([
                found.api.version.to_string().as_bytes(),
                compiler.library.as_bytes(),
                compiler.version().to_string().as_bytes(),
            ]),
        }
    }

    fn key(&self, text: &str) -> Key {
        let options = self.options.join("\n");
        key([self.fingerprint.as_bytes(), options.as_bytes(), text.as_bytes()])
    }

    /// Calls `load` with the code object of a source. The code object comes from the cache or from the
    /// compiler.
    ///
    /// # Errors
    /// Returns [`Error::Compile`](ragtag_hal::Error::Compile) with the log if the compilation fails.
    /// Otherwise returns the error of `load`.
    pub(crate) fn with_code<T>(&self, text: &str, load: impl Fn(&Code) -> Result<T>) -> Result<T> {
        let key = self.key(text);
        if let Some(code) = self.folder.as_ref().and_then(|folder| folder.load(&key)) {
            match load(&code) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => {
                    tracing::debug!(%key, %error, "the driver refused a cached program; compiling it again")
                }
            }
        }
        let code = self.compile(text)?;
        tracing::debug!(%key, bytes = text.len(), "compiled a program");
        let loaded = load(&code)?;
        if let Some(folder) = &self.folder {
            folder.store(&key, &code);
        }
        Ok(loaded)
    }

    fn compile(&self, text: &str) -> Result<Code> {
        if self.command.is_empty() {
            return self.compiler.compile(text, &self.options);
        }
        let library = &self.compiler.library;
        child::compile(&self.command, &Request { library, options: &self.options, text })
    }
}
