//! Results of a run of the suite, as data.

use ragtag_hal::Adapter;
use ragtag_kernels::NumericsClass;
use serde::{Deserialize, Serialize};

/// Verdict of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// The device behaves correctly.
    Passed {
        /// For kernels, the largest ‖out − reference‖ / ‖reference‖ of all cases.
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
    /// Passed, without a measured error.
    pub(crate) const PASSED: Verdict = Verdict::Passed { relative_error: None };

    /// Returns a skip with this reason.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Verdict::Skipped { reason: reason.into() }
    }
}

/// A test and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the test, such as `memory/copy`.
    pub name: String,
    /// Verdict of the test.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// For a kernel, its numerics class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<NumericsClass>,
    /// Duration in microseconds, including the time to open the device if necessary.
    pub duration_us: u64,
}

/// Results of the suite on one adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Adapter under test.
    pub adapter: Adapter,
    /// All tests.
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

    /// Returns the largest relative error of passed kernels of a class; `None` if there are none.
    pub fn worst_relative_error(&self, class: NumericsClass) -> Option<f64> {
        let error = |test: &Outcome| match test.verdict {
            Verdict::Passed { relative_error } if test.class == Some(class) => relative_error,
            _ => None,
        };
        self.tests.iter().filter_map(error).reduce(f64::max)
    }
}

/// A backend without testable adapters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Name of the backend.
    pub backend: String,
    /// Reason.
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
