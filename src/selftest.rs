//! Self-tests. A self-test runs the conformance suite on the devices of this machine and collects the
//! results.

use crate::{Devices, Error, Result};
use ragtag_conformance::{Absent, Shapes, Suite};
use ragtag_hal::Adapter;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Format version of [`SelfTest`] files.
pub const SELFTEST_VERSION: u32 = 1;

/// Results of a self-test, in the form of its JSON file.
#[derive(Clone, Debug, Serialize)]
pub struct SelfTest {
    /// Format version of the file.
    pub ragtag_selftest: u32,
    /// Version of Ragtag that ran the tests.
    pub ragtag: &'static str,
    /// Operating system of the machine.
    pub os: &'static str,
    /// CPU architecture of the machine.
    pub arch: &'static str,
    /// Time at which the self-test started, in seconds since 1970.
    pub started_unix_s: u64,
    /// Pattern that selects tests by name. An empty pattern selects all tests.
    pub only: String,
    /// Number of random shapes per kernel, in addition to the fixed shapes.
    pub shapes: u32,
    /// Seed of the first random shape. Each later shape uses the next seed.
    pub seed: u64,
    /// Report of each device, with the result of every test.
    pub reports: Vec<ragtag_conformance::Report>,
    /// Backends without a device, each with the reason.
    pub absent: Vec<Absent>,
}

/// Error of a self-test in which tests failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{failed} of {tests} tests failed")]
pub struct FailedTests {
    /// Number of failed tests.
    pub failed: usize,
    /// Number of tests in total.
    pub tests: usize,
}

impl SelfTest {
    /// Runs the tests whose names match `only` on each adapter in `adapters`. An empty `only` matches all
    /// tests (see [`Suite::only`]). `shapes` sets the random shapes for the kernel tests. Other work should
    /// not use the devices during the tests. Calls `starts` with the adapter and the name of each test before
    /// the test runs.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if no test matches. Does not return an error if a test fails (see
    /// [`SelfTest::check`]).
    pub fn run(
        devices: &Devices,
        adapters: &[Adapter],
        only: &str,
        shapes: Shapes,
        mut starts: impl FnMut(&Adapter, &str),
    ) -> Result<Self> {
        let suite = Suite::new().only(only).shapes(shapes);
        if suite.names().is_empty() {
            return Err(Error::Usage(format!("no test name matches {only:?}")));
        }
        let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let run = |adapter| {
            let open = || devices.open_adapter(adapter);
            suite.run(adapter, open, |test| starts(adapter, test))
        };
        Ok(Self {
            ragtag_selftest: SELFTEST_VERSION,
            ragtag: env!("CARGO_PKG_VERSION"),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            started_unix_s,
            only: only.into(),
            shapes: shapes.count,
            seed: shapes.seed,
            reports: adapters.iter().map(run).collect(),
            absent: devices.report().backends.iter().filter_map(ragtag_conformance::absent).collect(),
        })
    }

    /// Returns the number of tests per adapter whose names match `only`.
    pub fn tests(only: &str) -> usize {
        Suite::new().only(only).names().len()
    }

    /// Checks that no test failed.
    ///
    /// # Errors
    /// Returns the number of failed tests.
    pub fn check(&self) -> std::result::Result<(), FailedTests> {
        let failed = self.reports.iter().map(|report| report.failures().count()).sum();
        let tests = self.reports.iter().map(|report| report.tests.len()).sum();
        if failed == 0 { Ok(()) } else { Err(FailedTests { failed, tests }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;
    use ragtag_conformance::Verdict;

    #[test]
    fn a_failed_test_is_an_error() {
        let cpu = DeviceOptions::selecting("cpu");
        let devices = Devices::probe(&cpu).unwrap();
        let mut found =
            SelfTest::run(&devices, devices.selected(), "memory/fill", Shapes::default(), |_, _| {}).unwrap();
        found.check().unwrap();
        found.reports[0].tests[0].verdict = Verdict::Failed { why: "for a test".into() };
        let error = found.check().unwrap_err();
        assert_eq!(error, FailedTests { failed: 1, tests: 1 });
    }

    #[test]
    fn an_adapter_that_cannot_be_opened_fails_its_tests() {
        let cpu = DeviceOptions::selecting("cpu");
        let devices = Devices::probe(&cpu).unwrap();
        let mut gone = devices.selected()[0].clone();
        gone.index = 77;
        let found = SelfTest::run(&devices, &[gone], "memory/", Shapes::default(), |_, _| {}).unwrap();
        assert_eq!(found.reports[0].failures().count(), SelfTest::tests("memory/"));
    }
}
