//! What cargo says of the workspace.
//!
//! This module must not know rules; it reads.

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The answer of `cargo metadata`, as far as tasks need it.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub packages: Vec<Package>,
    pub target_directory: PathBuf,
}

/// A crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    pub dependencies: Vec<Dependency>,
    /// Registries; none stands for all, an empty list for `publish = false`.
    publish: Option<Vec<String>>,
}

/// A dependency of a crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub name: String,
    pub kind: Option<String>,
    pub path: Option<PathBuf>,
}

impl Package {
    /// Whether a registry may have it.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

/// Asks cargo.
pub(crate) fn read(root: &Path) -> Result<Metadata, String> {
    let output = Command::new(crate::checks::cargo())
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}
