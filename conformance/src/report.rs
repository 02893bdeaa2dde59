//! What a run of the suite says, as data.

use ragtag_hal::Adapter;
use ragtag_kernels::NumericsClass;
use serde::{Deserialize, Serialize};

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// As it should.
    Passed {
        /// For kernels the largest ‖out − reference‖ / ‖reference‖ of all cases.
        relative_error: Option<f64>,
    },
    /// The device cannot do this: it says so, or it is known ([`crate::KnownFailure`]).
    Skipped {
        /// What it lacks.
        reason: String,
    },
    /// Wrongly.
    Failed {
        /// What was wrong.
        why: String,
    },
}

impl Verdict {
    /// Passed, with nothing to measure.
    pub(crate) const PASSED: Verdict = Verdict::Passed { relative_error: None };

    /// Skipped for this reason.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Verdict::Skipped { reason: reason.into() }
    }
}

/// A test and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name, as in `memory/copy`.
    pub name: String,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Of a kernel, how close it has to come to float64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<NumericsClass>,
    /// How long it took, in microseconds, with opening the device where that was needed.
    pub duration_us: u64,
}

/// The suite on one adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The adapter.
    pub adapter: Adapter,
    /// All tests.
    pub tests: Vec<Outcome>,
}

impl Report {
    /// The tests that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Failed { .. }))
    }

    /// How many tests passed.
    pub fn passed(&self) -> usize {
        self.tests.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count()
    }

    /// The largest relative error of the kernels of a class that passed; `None` if there are none.
    pub fn worst_relative_error(&self, class: NumericsClass) -> Option<f64> {
        let error = |test: &Outcome| match test.verdict {
            Verdict::Passed { relative_error } if test.class == Some(class) => relative_error,
            _ => None,
        };
        self.tests.iter().filter_map(error).reduce(f64::max)
    }
}

/// A backend on which nothing could be tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Its name.
    pub backend: String,
    /// Why.
    pub cause: String,
}

/// The suite on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One report for each adapter.
    pub reports: Vec<Report>,
    /// The backends that have none.
    pub absent: Vec<Absent>,
}
