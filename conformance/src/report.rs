//! Results of the suite, as plain data.

use ragtag_hal::Adapter;
use ragtag_kernels::NumericsClass;
use serde::{Deserialize, Serialize};

/// Verdict of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// The device behaves correctly.
    Passed {
        /// Maximum of ‖out − reference‖ / ‖reference‖ over all cases, or `None` for a test without kernels.
        relative_error: Option<f64>,
    },
    /// The device lacks a feature, according to the device itself or to a [`crate::KnownFailure`].
    Skipped {
        /// Description of the missing feature.
        reason: String,
    },
    /// The device behaves incorrectly.
    Failed {
        /// Description of the failure.
        why: String,
    },
}

impl Verdict {
    /// Verdict of a passed test that measures no error.
    pub(crate) const PASSED: Verdict = Verdict::Passed { relative_error: None };

    /// Returns the verdict of a test that was skipped for `reason`.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Verdict::Skipped { reason: reason.into() }
    }
}

/// A test and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the test, for example `memory/copy`.
    pub name: String,
    /// Verdict of the test.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Numerics class of the kernel, or `None` for a test without kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<NumericsClass>,
    /// Duration of the test in microseconds. It includes the time to open the device if the test needed a
    /// newly opened device.
    pub duration_us: u64,
}

/// Results of the suite on one adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Adapter under test.
    pub adapter: Adapter,
    /// Outcomes of all tests.
    pub tests: Vec<Outcome>,
}

impl Report {
    /// Returns the outcomes of the failed tests.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Failed { .. }))
    }

    /// Returns the number of passed tests.
    pub fn passed(&self) -> usize {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count()
    }

    /// Returns the largest relative error among the passed kernels of a numerics class. Returns `None` if no
    /// such kernel passed.
    pub fn worst_relative_error(&self, class: NumericsClass) -> Option<f64> {
        let error = |test: &Outcome| match test.verdict {
            Verdict::Passed { relative_error } if test.class == Some(class) => relative_error,
            _ => None,
        };
        self.tests.iter().filter_map(error).reduce(f64::max)
    }
}

/// A backend that has no adapter to test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Name of the backend.
    pub backend: String,
    /// Reason why the backend has no adapter.
    pub cause: String,
}

/// Results of the suite on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Reports of the adapters.
    pub reports: Vec<Report>,
    /// Backends that have no adapter.
    pub absent: Vec<Absent>,
}
