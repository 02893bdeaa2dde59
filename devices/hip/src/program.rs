//! Code objects: compiled once for a text and a device, and kept on disk.
//!
//! This module must not know kernels or modules.

use crate::api::{Code, Compiler};
use crate::child::{self, Request};
use crate::probe::Found;
use ragtag_hal::Result;
use ragtag_hal::cache::{Folder, Key, key};
use std::ffi::OsString;

/// What every text is compiled with, beside the architecture. What is to be fused is written so, and nothing trades
/// exactness for speed.
pub(crate) const OPTIONS: [&str; 3] = ["-std=c++17", "-O3", "-ffp-contract=off"];

/// A device's code objects.
pub(crate) struct Programs {
    compiler: &'static Compiler,
    /// What starts a process to compile in; none: this one.
    command: Vec<OsString>,
    folder: Option<Folder>,
    options: Vec<String>,
    /// Names the driver and the compiler.
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

    /// Has a text's code loaded, from disk or else compiled.
    ///
    /// # Errors
    /// [`Error::Compile`](ragtag_hal::Error::Compile) with the log; what `load` says.
    pub(crate) fn with_code<T>(&self, text: &str, load: impl Fn(&Code) -> Result<T>) -> Result<T> {
        let key = self.key(text);
        if let Some(code) = self.folder.as_ref().and_then(|folder| folder.load(&key)) {
            match load(&code) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => tracing::debug!(%key, %error, "a kept program was refused"),
            }
        }
        let code = self.compile(text)?;
        tracing::debug!(%key, bytes = text.len(), "a program was compiled");
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
