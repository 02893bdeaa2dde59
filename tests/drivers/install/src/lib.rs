//! Runs tests in separate processes with a stand-in for AMD's driver, with a Level Zero driver, or with a
//! layer over Vulkan's drivers.
//!
//! The loader reads its search path when a process starts, and loads each library once per process. A test
//! therefore starts its own binary again with a changed environment. For AMD's driver, the loader's search
//! path begins with a folder that contains the stand-in under the driver's name. For Vulkan, environment
//! variables name the layer ([`with_vulkan_faults`]). For Level Zero, they name the driver
//! ([`with_level_zero_on_opencl`]). This crate depends on the crates of the stand-in, the driver and the
//! layer, so that cargo builds them with the tests.
//!
//! Used only by tests. Knows nothing about the tested code.

#![allow(clippy::print_stdout)] // skips are visible

mod faults;
mod level_zero;
mod vulkan;

pub use faults::{Faults, LostAt};
pub use level_zero::{level_zero_faults, with_level_zero_on_opencl};
pub use vulkan::with_vulkan_faults;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;
use test_support::Child;

/// Package of the stand-in that runs on OpenCL devices.
pub const HIP_ON_OPENCL: &str = "hip-on-opencl";
/// Names of the links to the stand-in. The backend tries these file names first, so that it finds the
/// stand-in before an installed driver. The version of rocBLAS matches the HIP version of the stand-in.
const NAMES: [&str; 3] = ["libamdhip64.so.7", "libhiprtc.so.7", "librocblas.so.4"];

/// Runs `body` in a separate process with HIP on OpenCL and the environment variables in `variables`. `test`
/// is the full name of the test in its binary.
///
/// # Panics
/// Panics if the stand-in does not exist, or if the test fails in the separate process.
#[track_caller]
pub fn with_hip_on_opencl(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    let prepare = || {
        let path = library_path(hip_on_opencl()).into_string().expect("a path in UTF-8");
        vec![("LD_LIBRARY_PATH".into(), path)]
    };
    in_own_process(HIP_ON_OPENCL, test, variables, prepare, body);
}

/// Runs `body` if this process was started for `test`. Otherwise starts such a process. Its environment
/// contains `variables` and the variables that `prepare` returns. The processes with the same build of `package`
/// share a cache of compiled programs, because Intel's compiler takes most of a test's time.
#[track_caller]
fn in_own_process(
    package: &str,
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
    let built = std::fs::metadata(library(package)).and_then(|facts| facts.modified()).expect("a time");
    let built = built.duration_since(UNIX_EPOCH).expect("a time after 1970");
    let cache = folder(package).join(format!("programs-{}", built.as_nanos()));
    let child = test_support::child(test).env("RAGTAG_CACHE_DIR", cache);
    child.envs(prepared).envs(variables.iter().copied()).passes();
}

/// Returns the folder of links to the stand-in that runs on OpenCL. Each link has the name of one of AMD's
/// libraries.
///
/// # Panics
/// Panics if the folder cannot be created.
pub fn hip_on_opencl() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| installed(HIP_ON_OPENCL))
}

/// Returns the name and the value of the environment variable that enables the stand-in's rocBLAS. Ragtag
/// uses rocBLAS only if its folder has kernels for the device's architecture. This function therefore creates
/// a folder with an empty kernel file for the architecture of [`HIP_ON_OPENCL`].
///
/// # Panics
/// Panics if the folder cannot be created.
pub fn rocblas_kernels() -> (&'static str, String) {
    let exe = env::current_exe().expect("a program knows its file");
    let folder = exe.with_file_name("rocblas-kernels");
    std::fs::create_dir_all(&folder).expect("a folder for kernels");
    std::fs::write(folder.join("TensileLibrary_lazy_gfx1030.dat"), "").expect("a file in it");
    ("ROCBLAS_TENSILE_LIBPATH", folder.into_os_string().into_string().expect("a path in UTF-8"))
}

/// Returns the loader's search path with `folder` in front.
pub fn library_path(folder: &Path) -> OsString {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let all = [folder.to_path_buf()].into_iter().chain(env::split_paths(&before));
    env::join_paths(all).expect("folders without a colon")
}

/// Returns the path of the library that a package builds. Cargo places libraries next to the tests that need
/// them.
fn library(package: &str) -> PathBuf {
    let exe = env::current_exe().expect("a program knows its file");
    let library = exe.with_file_name(format!("lib{}.so", package.replace('-', "_")));
    assert!(library.is_file(), "cargo did not build {}", library.display());
    library
}

/// Returns the folder for a stand-in's links or the layer's manifest. Creates the folder if necessary.
fn folder(package: &str) -> PathBuf {
    let exe = env::current_exe().expect("a program knows its file");
    let folder = exe.with_file_name("drivers").join(package);
    std::fs::create_dir_all(&folder).expect("a folder for a stand-in");
    folder
}

/// Links a stand-in under the names of AMD's libraries. Returns the folder with the links.
fn installed(package: &str) -> PathBuf {
    let (library, folder) = (library(package), folder(package));
    NAMES.iter().for_each(|name| link(&library, &folder.join(name)));
    folder
}

/// Creates or replaces a symbolic link. Several processes may replace the same link at the same time.
fn link(library: &Path, name: &Path) {
    #[cfg(unix)]
    {
        let passing = name.with_extension(format!("{}.new", std::process::id()));
        let _ = std::fs::remove_file(&passing);
        std::os::unix::fs::symlink(library, &passing).expect("a link to the stand-in");
        std::fs::rename(&passing, name).expect("the link takes its name");
    }
    #[cfg(not(unix))]
    unreachable!("{} and {}: links are only made on Unix", library.display(), name.display());
}
