//! Runs tests in separate processes in which Level Zero's loader finds the test driver on Intel's OpenCL
//! runtime, and checks every call.

use crate::faults::Faults;
use crate::{in_own_process, library};
use std::env;
use std::error::Error as _;
use std::path::Path;
use test_support::Child;

/// Package of the driver.
const PACKAGE: &str = "level-zero-on-opencl";
/// Environment variable. If it is set, a test that finds no loader or no runtime fails instead of skipping.
const EXPECTED: &str = "RAGTAG_TEST_LEVEL_ZERO";
/// Name of the loader's library.
const LOADER: &str = "libze_loader.so.1";
/// Name of the runtime's library.
const RUNTIME: &str = "libintelocl.so";

/// Runs `body` in a separate process in which Level Zero's loader uses the test driver and its own validation
/// layer. The process also gets the environment variables in `variables`. `test` is the full name of the test
/// in its binary. Skips the test if the loader or Intel's OpenCL runtime is missing.
///
/// # Panics
/// Panics if the driver was not built, if the test fails in the separate process, or if something is missing
/// although `RAGTAG_TEST_LEVEL_ZERO` is set.
#[track_caller]
pub fn with_level_zero_on_opencl(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    let why = if Child::inside(test) || !cfg!(target_os = "linux") { None } else { missing() };
    if let Some(why) = why {
        assert!(env::var_os(EXPECTED).is_none(), "{why}");
        test_support::skip!("Level Zero driver", "{why}");
        return;
    }
    let prepare = || {
        let path = library(PACKAGE).into_os_string().into_string().expect("a path in UTF-8");
        vec![
            ("ZE_ENABLE_ALT_DRIVERS".into(), path),
            ("ZE_ENABLE_VALIDATION_LAYER".into(), "1".into()),
            ("ZE_ENABLE_PARAMETER_VALIDATION".into(), "1".into()),
        ]
    };
    in_own_process(PACKAGE, test, variables, prepare, body);
}

/// Returns the handle through which a test controls the driver of its process.
///
/// # Panics
/// Panics if the driver was not built.
pub fn level_zero_faults() -> Faults {
    Faults::load(PACKAGE)
}

/// Returns the reason why the driver cannot run, if any.
fn missing() -> Option<String> {
    // SAFETY: the loader's initialisers do nothing before `zeInit`.
    if let Err(error) = unsafe { libloading::Library::new(LOADER) } {
        return Some(error.source().unwrap_or(&error).to_string());
    }
    let named = |folder: std::ffi::OsString| {
        let files = std::fs::read_dir(folder).ok()?;
        let names = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
        names.map(|name| name.trim().to_string()).find(|name| name.ends_with(RUNTIME))
    };
    let runtime = env::var_os("RAGTAG_FAKE_OPENCL").map(|path| path.to_string_lossy().into_owned());
    let runtime = runtime.or_else(|| named(env::var_os("OCL_ICD_VENDORS")?));
    let found = runtime.is_some_and(|path| Path::new(&path).exists());
    (!found).then(|| format!("no file in OCL_ICD_VENDORS names {RUNTIME}"))
}
