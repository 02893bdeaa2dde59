//! Results of a run of the suite as plain data.

use ragtag_hal::Adapter;
use ragtag_kernels::NumericsClass;
use serde::{Deserialize, Serialize};

/// Verdict of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// The device behaves correctly.
    Passed {
        /// Largest ‖out − reference‖ / ‖reference‖ of all cases, for kernels only.
        relative_error: Option<f64>,
    },
    /// The device lacks a feature, by its own report or by a known failure ([`crate::KnownFailure`]).
    Skipped {
        /// Missing feature.
        reason: String,
    },
    /// The device behaves incorrectly.
    Failed {
        /// Description of the failure.
        why: String,
    },
}

impl Verdict {
    /// Passed verdict without a measured error.
    pub(crate) const PASSED: Verdict = Verdict::Passed { relative_error: None };

    /// Returns a skipped verdict with this reason.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Verdict::Skipped { reason: reason.into() }
    }
}

/// Test with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the test, such as `memory/copy`.
    pub name: String,
    /// Verdict of the test.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Numerics class of a kernel. `None` for other tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<NumericsClass>,
    /// Duration in microseconds. Includes the time to open the device if the test needed a new one.
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
    /// Returns the failed tests.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Failed { .. }))
    }

    /// Returns the number of passed tests.
    pub fn passed(&self) -> usize {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count()
    }

    /// Returns the largest relative error of the passed kernels of a class. Returns `None` if no such kernel
    /// passed.
    pub fn worst_relative_error(&self, class: NumericsClass) -> Option<f64> {
        let error = |test: &Outcome| match test.verdict {
            Verdict::Passed { relative_error } if test.class == Some(class) => relative_error,
            _ => None,
        };
        self.tests.iter().filter_map(error).reduce(f64::max)
    }
}

/// Backend without testable adapters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Name of the backend.
    pub backend: String,
    /// Reason why the backend has no adapter.
    pub cause: String,
}

/// Results of the suite on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One report per adapter.
    pub reports: Vec<Report>,
    /// Backends without adapters.
    pub absent: Vec<Absent>,
}
