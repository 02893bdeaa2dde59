//! The conformance suite on the devices of this machine: what each owes, tried out, and what came of it as data.
//!
//! This module must not know how results are shown.

use crate::devices::Devices;
use crate::error::{Error, Result};
use ragtag_conformance::{Absent, Shapes, Suite};
use ragtag_hal::Adapter;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the form of [`SelfTest`] in files.
pub const SELFTEST_VERSION: u32 = 1;

/// What a self-test found.
#[derive(Clone, Debug, Serialize)]
pub struct SelfTest {
    /// The version of this form.
    pub ragtag_selftest: u32,
    /// The version of the program.
    pub ragtag: &'static str,
    /// The operating system.
    pub os: &'static str,
    /// The processor's architecture.
    pub arch: &'static str,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// The pattern that tests' names had to hold; empty for all tests.
    pub only: String,
    /// How many random shapes each kernel was tried with, beside the listed ones.
    pub shapes: u32,
    /// The seed of the first of them; each of the others has the next.
    pub seed: u64,
    /// One report for each device, with every test.
    pub reports: Vec<ragtag_conformance::Report>,
    /// The backends that show no device, and why.
    pub absent: Vec<Absent>,
}

impl SelfTest {
    /// Runs the tests whose names hold `only` (see [`Suite::only`]; an empty one for all) on these adapters, one after
    /// another, with these random shapes of kernels. Each is opened anew, so it should not be in use. Tells `starts` the adapter
    /// and the name of each test before it begins.
    ///
    /// # Errors
    /// [`Error::Usage`] if no test has such a name. That a test fails is no error: see [`SelfTest::check`].
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

    /// How many tests that is for each adapter.
    pub fn tests(only: &str) -> usize {
        Suite::new().only(only).names().len()
    }

    /// Whether every test passed or was skipped.
    ///
    /// # Errors
    /// [`Error::SelfTest`] says how many failed.
    pub fn check(&self) -> Result<()> {
        let failed = self.reports.iter().map(|report| report.failures().count()).sum();
        let tests = self.reports.iter().map(|report| report.tests.len()).sum();
        if failed == 0 { Ok(()) } else { Err(Error::SelfTest { failed, tests }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::DeviceOptions;
    use ragtag_conformance::Verdict;

    #[test]
    fn a_failed_test_is_an_error_with_exit_code_1() {
        let cpu = DeviceOptions::selecting("cpu");
        let devices = Devices::probe(&cpu).unwrap();
        let mut found =
            SelfTest::run(&devices, devices.selected(), "memory/fill", Shapes::default(), |_, _| {}).unwrap();
        found.check().unwrap();
        found.reports[0].tests[0].verdict = Verdict::Failed { why: "for a test".into() };
        let error = found.check().unwrap_err();
        assert!(matches!(error, Error::SelfTest { failed: 1, tests: 1 }));
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn an_adapter_that_does_not_open_fails_its_tests() {
        let cpu = DeviceOptions::selecting("cpu");
        let devices = Devices::probe(&cpu).unwrap();
        let mut gone = devices.selected()[0].clone();
        gone.index = 77;
        let found = SelfTest::run(&devices, &[gone], "memory/", Shapes::default(), |_, _| {}).unwrap();
        assert_eq!(found.reports[0].failures().count(), SelfTest::tests("memory/"));
    }
}
