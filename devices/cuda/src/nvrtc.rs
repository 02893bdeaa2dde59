//! CUDA C++ kernels, compiled for the exact architecture and cached on disk.
//!
//! The cache stores machine code together with the PTX, which describes the functions.

use crate::api::Nvrtc;
use ragtag_hal::Result;
use ragtag_hal::cache::{Folder, Key, key};
use std::sync::Arc;

/// Size in bytes of the length field that precedes the PTX in a cache file.
const LENGTH_BYTES: usize = 8;

/// PTX and machine code compiled from one source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub(crate) ptx: String,
    pub(crate) machine_code: Vec<u8>,
}

impl Compiled {
    fn to_bytes(&self) -> Vec<u8> {
        let length = (self.ptx.len() as u64).to_le_bytes();
        [&length, self.ptx.as_bytes(), &self.machine_code].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let (ptx, machine_code) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let ptx = String::from_utf8(ptx.to_vec()).ok()?;
        (!machine_code.is_empty()).then(|| Self { ptx, machine_code: machine_code.to_vec() })
    }
}

/// Returns the compiler options. The target is the device's exact architecture, including the features that
/// only this architecture has. Rounding follows IEEE 754, and contraction is disabled, so that all compilers
/// produce the same results.
pub(crate) fn options((major, minor): (i32, i32)) -> Vec<String> {
    let suffix = if (major, minor) >= (9, 0) { "a" } else { "" };
    let architecture = format!("--gpu-architecture=sm_{major}{minor}{suffix}");
    [&architecture, "--std=c++17", "-default-device", "-fmad=false"].map(String::from).to_vec()
}

/// NVRTC for one device.
pub(crate) struct Compiler {
    nvrtc: Arc<Nvrtc>,
    folder: Option<Folder>,
    options: Vec<String>,
}

impl Compiler {
    pub(crate) fn new(nvrtc: Arc<Nvrtc>, folder: Option<Folder>, capability: (i32, i32)) -> Self {
        Self { nvrtc, folder, options: options(capability) }
    }

    fn key(&self, text: &str) -> Key {
        let (major, minor) = self.nvrtc.version();
        let compiler = format!("NVRTC {major}.{minor}");
        let parts = [compiler.as_bytes(), text.as_bytes()];
        key(parts.into_iter().chain(self.options.iter().map(String::as_bytes)))
    }

    /// Returns the code of a source. The code comes from the cache or from the compiler.
    ///
    /// # Errors
    /// Returns [`Error::Compile`](ragtag_hal::Error::Compile) with the log if the compilation fails.
    pub(crate) fn compile(&self, text: &str) -> Result<Compiled> {
        let key = self.key(text);
        let kept = self.folder.as_ref().and_then(|folder| folder.load(&key));
        if let Some(compiled) = kept.as_deref().and_then(Compiled::from_bytes) {
            tracing::debug!(%key, "loaded a cached program");
            return Ok(compiled);
        }
        let (ptx, machine_code) = self.nvrtc.compile(text, &self.options)?;
        let compiled = Compiled { ptx, machine_code };
        tracing::debug!(%key, bytes = compiled.machine_code.len(), "compiled a program");
        if let Some(folder) = &self.folder {
            folder.store(&key, &compiled.to_bytes());
        }
        Ok(compiled)
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn only_intact_cache_entries_are_loaded() {
        let compiled = Compiled { ptx: ".entry k()".into(), machine_code: b"\x7fELF".to_vec() };
        let bytes = compiled.to_bytes();
        assert_eq!(Compiled::from_bytes(&bytes).as_ref(), Some(&compiled));
        for end in [0, 7, 8, 12, bytes.len() - 4] {
            assert_eq!(Compiled::from_bytes(&bytes[..end]), None, "{end} bytes");
        }
        let mut lying = bytes.clone();
        lying[..LENGTH_BYTES].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Compiled::from_bytes(&lying), None);
    }

    #[test]
    fn a_device_has_its_own_architecture() {
        assert_eq!(options((8, 6))[0], "--gpu-architecture=sm_86");
        assert_eq!(options((9, 0))[0], "--gpu-architecture=sm_90a");
    }

    #[test]
    fn a_program_is_compiled_once() {
        let Some(nvrtc) = Nvrtc::find(99_000).map(Arc::new) else {
            test_support::skip!("NVRTC", "not installed");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let compiler = |capability| {
            let kept = Some(Folder::new(folder.path().into()));
            Compiler::new(Arc::clone(&nvrtc), kept, capability)
        };
        let text = "extern \"C\" __global__ void nothing() {}";
        let first = compiler((9, 0)).compile(text).unwrap();
        assert_eq!(compiler((9, 0)).compile(text).unwrap(), first);
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files(), 1);
        assert_ne!(compiler((8, 0)).compile(text).unwrap(), first);
        assert_eq!(files(), 2, "another architecture is another program");
    }
}
