//! What a run of the suite says, as data.

use ragtag_hal::Adapter;
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
    /// The device cannot do this, and says so.
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
