//! Where the libraries of NVIDIA's toolkit may lie: they come with the toolkit, not with the driver, and often lie off the
//! loader's path.

use std::ffi::OsString;
use std::path::PathBuf;

/// Places to try for a library of these names: as the loader finds them, then where toolkits are installed.
pub(super) fn places(names: &[&str]) -> Vec<OsString> {
    let mut folders: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
        .map(|home| PathBuf::from(home).join(if cfg!(windows) { "bin" } else { "lib64" }))
        .collect();
    if !cfg!(windows) {
        folders.push("/usr/local/cuda/lib64".into());
    }
    let within =
        folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name).into_os_string()));
    names.iter().map(OsString::from).chain(within).collect()
}
