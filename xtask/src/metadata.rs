//! Reads the output of `cargo metadata` for the workspace.
//!
//! Other modules check rules about the metadata.

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Output of `cargo metadata`, reduced to the fields that xtask needs.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub packages: Vec<Package>,
    pub target_directory: PathBuf,
}

/// Crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    pub dependencies: Vec<Dependency>,
    /// Registries that may publish the crate. `None` means every registry; an empty list means `publish =
    /// false`.
    publish: Option<Vec<String>>,
}

/// Dependency of a crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub name: String,
    pub kind: Option<String>,
    pub path: Option<PathBuf>,
}

impl Package {
    /// Returns whether a registry may publish the crate.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

/// Runs `cargo metadata` and parses its output.
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
