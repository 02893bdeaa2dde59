//! The key that a worker and its coordinators share: 128 random bits. Both ends derive the same Ed25519 key from it, and
//! accept only a peer that has this key. Neither the key nor a part of it is sent.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Context of the derivation of the Ed25519 key.
const CONTEXT: &str = "ragtag 2026-11 key of a worker";

/// Context of the derivation of keys for one purpose.
const PURPOSE: &str = "ragtag 2026-11 key for one purpose";
/// Context of the derivation of names.
const NAME: &str = "ragtag 2026-11 name of a key";

/// Key of a worker. Anyone with it may use the devices of the worker.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerKey([u8; 16]);

impl fmt::Debug for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerKey(…)")
    }
}

impl WorkerKey {
    /// Makes a key.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the system has no random bits.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 16];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| Error::Usage("the system returns no random bits".into()))?;
        Ok(Self(bytes))
    }

    /// Returns the default path of a worker's key: `worker/key` in `RAGTAG_CACHE_DIR`, or `ragtag/worker/key` in the
    /// user's cache folder.
    pub fn default_path() -> Option<PathBuf> {
        Some(ragtag_hal::cache::default_folder("worker")?.join("key"))
    }

    /// Reads the key in a file. Makes a key and the file if there is none. Only the user can read the file.
    ///
    /// # Errors
    /// Returns [`Error::File`] if the file cannot be read or written, and [`Error::Usage`] if it has no key.
    pub fn at(path: &Path) -> Result<Self> {
        let failed = |action| move |cause| Error::File { action, path: path.into(), cause };
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let wrong = |what| Error::Usage(format!("{}: {what}", path.display()));
                text.trim().parse().map_err(wrong)
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                let key = Self::generate()?;
                path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed("write"))?;
                let mut options = std::fs::OpenOptions::new();
                options.write(true).create_new(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let written = options.open(path).and_then(|mut file| writeln!(file, "{key}"));
                written.map_err(failed("write"))?;
                Ok(key)
            }
            Err(cause) => Err(failed("read")(cause)),
        }
    }

    /// Returns a key for one purpose, from which this key cannot be derived.
    pub(super) fn derived(&self, purpose: &str) -> Self {
        let bytes = blake3::derive_key(PURPOSE, &[&self.0, purpose.as_bytes()].concat());
        Self(std::array::from_fn(|at| bytes[at]))
    }

    /// Returns the name of the key, which the end that connects sends. The key cannot be derived from it.
    pub(super) fn name(&self) -> String {
        let digits = blake3::Hash::from(blake3::derive_key(NAME, &self.0)).to_hex();
        format!("{}.ragtag.invalid", &digits[..32])
    }

    /// Returns the private key, as PKCS #8.
    pub(super) fn private(&self) -> Vec<u8> {
        let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        der.extend_from_slice(&blake3::derive_key(CONTEXT, &self.0));
        der
    }
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<WorkerKey> for String {
    fn from(key: WorkerKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for WorkerKey {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl FromStr for WorkerKey {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "a worker's key has 32 hexadecimal digits".to_owned();
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u128::from_str_radix(text, 16).map(|bits| Self(bits.to_be_bytes())).map_err(|_| wrong())
    }
}
