//! Tests in processes of their own that find a stand-in where they would find AMD's driver, or a layer over Vulkan's.
//!
//! The loader reads where to look when a process starts, and a library is loaded once in a process: so a test starts its
//! binary again for itself alone. Before a stand-in for a driver it puts a folder in front of the loader's path in which the
//! stand-in has the driver's name; Vulkan's loader is told of the layer by variables ([`with_vulkan_faults`]). Cargo builds both
//! along with the tests: this crate depends on them.
//!
//! This crate is for tests alone and must not know what they test.

#![allow(clippy::print_stdout)] // a skip is visible

mod vulkan;

pub use vulkan::{LostAt, VulkanFaults, with_vulkan_faults};

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use test_support::Child;

/// The stand-in on OpenCL devices.
pub const HIP_ON_OPENCL: &str = "hip-on-opencl";
/// The names that the backend looks for first: whatever else is installed comes after it. Of rocBLAS it is the one for the
/// version that the stand-in pretends to be.
const NAMES: [&str; 3] = ["libamdhip64.so.7", "libhiprtc.so.7", "librocblas.so.4"];

/// Runs the body of a test in a process of its own that finds HIP on OpenCL, with these variables set besides. `test` is the
/// test's full name in its binary.
///
/// # Panics
/// If the stand-in is not there, or the test fails there.
#[track_caller]
pub fn with_hip_on_opencl(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    let prepare = || {
        let path = library_path(hip_on_opencl()).into_string().expect("a path in UTF-8");
        vec![("LD_LIBRARY_PATH".into(), path)]
    };
    in_own_process(test, variables, prepare, body);
}

/// Runs the body of a test in a process of its own: this one, if it was started for that. That has these variables, and those
/// that come of what has to be prepared.
#[track_caller]
fn in_own_process(
    test: &str,
    variables: &[(&str, &str)],
    prepare: impl FnOnce() -> Vec<(String, String)>,
    body: impl FnOnce(),
) {
    if Child::inside(test) {
        return body();
    }
    if !cfg!(target_os = "linux") {
        test_support::skip!("Linux", "only its loader can be redirected");
        return;
    }
    let prepared = prepare();
    let cache = tempfile::tempdir().expect("a folder for compiled programs");
    let child = test_support::child(test).env("RAGTAG_CACHE_DIR", cache.path());
    child.envs(prepared).envs(variables.iter().copied()).passes();
}

/// The folder with the stand-in on OpenCL under the driver's names.
///
/// # Panics
/// If it cannot be made.
pub fn hip_on_opencl() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| installed(HIP_ON_OPENCL))
}

/// The variable and the folder by which the stand-in's rocBLAS is used, which is there but, like the real one, only served
/// where there are kernels for the architecture: here one that [`HIP_ON_OPENCL`] pretends to be, without anything in it.
///
/// # Panics
/// If the folder cannot be made.
pub fn rocblas_kernels() -> (&'static str, String) {
    let exe = env::current_exe().expect("a program knows its file");
    let folder = exe.with_file_name("rocblas-kernels");
    std::fs::create_dir_all(&folder).expect("a folder for kernels");
    std::fs::write(folder.join("TensileLibrary_lazy_gfx1030.dat"), "").expect("a file in it");
    ("ROCBLAS_TENSILE_LIBPATH", folder.into_os_string().into_string().expect("a path in UTF-8"))
}

/// A folder in front of where the loader looks.
pub fn library_path(folder: &Path) -> OsString {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let all = [folder.to_path_buf()].into_iter().chain(env::split_paths(&before));
    env::join_paths(all).expect("folders without a colon")
}

/// The library of a package: cargo has those that it builds for tests lie where the tests do.
fn library(package: &str) -> PathBuf {
    let exe = env::current_exe().expect("a program knows its file");
    let library = exe.with_file_name(format!("lib{}.so", package.replace('-', "_")));
    assert!(library.is_file(), "cargo built no {}", library.display());
    library
}

/// A folder for what belongs to a package.
fn folder(package: &str) -> PathBuf {
    let exe = env::current_exe().expect("a program knows its file");
    let folder = exe.with_file_name("drivers").join(package);
    std::fs::create_dir_all(&folder).expect("a folder for a stand-in");
    folder
}

/// Gives a stand-in the driver's names.
fn installed(package: &str) -> PathBuf {
    let (library, folder) = (library(package), folder(package));
    NAMES.iter().for_each(|name| link(&library, &folder.join(name)));
    folder
}

/// A link of this name, in place of another that may be there. Tests of several processes make it at the same time.
fn link(library: &Path, name: &Path) {
    #[cfg(unix)]
    {
        let passing = name.with_extension(format!("{}.new", std::process::id()));
        let _ = std::fs::remove_file(&passing);
        std::os::unix::fs::symlink(library, &passing).expect("a link to the stand-in");
        std::fs::rename(&passing, name).expect("the link takes its name");
    }
    #[cfg(not(unix))]
    unreachable!("{} and {}: nobody asks for links here", library.display(), name.display());
}
