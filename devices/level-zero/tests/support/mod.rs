//! Backend for the tests, and the process in which a test runs.
//!
//! Each test runs in a process of its own, in which Level Zero's loader uses the test driver and its validation
//! layer. If `RAGTAG_TEST_OWN_LEVEL_ZERO` is set, the tests run on the machine's own devices instead.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::{Subject, each};
pub use device_bench::*;

use ragtag_hal::{Adapter, Backend};
use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};
use test_drivers::with_level_zero_on_opencl;

/// Environment variable. If it is set, tests use the machine's own devices.
const OWN: &str = "RAGTAG_TEST_OWN_LEVEL_ZERO";

/// Returns a configuration without a cache on disk.
pub fn config() -> LevelZeroConfig {
    LevelZeroConfig { cache_folder: None, ..LevelZeroConfig::default() }
}

pub fn backend() -> LevelZeroBackend {
    LevelZeroBackend::new(config())
}

/// Subject of the shared tests.
pub struct Tested {
    pub backend: LevelZeroBackend,
    /// Whether this process runs the test. If not, another process has already passed it.
    runs: bool,
}

impl Tested {
    pub fn new(backend: LevelZeroBackend) -> Self {
        Self { backend, runs: true }
    }
}

/// Returns the subject of the current test. Runs the test in another process if necessary.
#[track_caller]
pub fn subject() -> Tested {
    subject_with(&[])
}

/// Like [`subject`], with environment variables for the test driver.
#[track_caller]
pub fn subject_with(variables: &[(&str, &str)]) -> Tested {
    let mut runs = std::env::var_os(OWN).is_some();
    if !runs {
        // The harness names the thread after the test.
        let thread = std::thread::current();
        let test = thread.name().expect("a test with a name");
        with_level_zero_on_opencl(test, variables, || runs = true);
    }
    Tested { backend: backend(), runs }
}

impl Subject for Tested {
    fn api(&self) -> &'static str {
        "Level Zero"
    }

    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn adapters(&self) -> Vec<Adapter> {
        if !self.runs {
            return Vec::new();
        }
        let adapters = self.backend.probe().unwrap();
        let may_be_one = [OWN, "RAGTAG_FAKE_TILES"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(adapters.len() > 1 || may_be_one, "the test driver has two devices");
        adapters
    }

    fn skip(&self, missing: &str, why: &str) {
        if self.runs {
            test_support::skip!(missing, "{why}");
        }
    }
}
