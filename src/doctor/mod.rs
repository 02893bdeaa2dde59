//! Diagnosis of missing devices: checks the build, libraries, drivers and permissions for each API, and
//! suggests fixes.
//!
//! Only reads the system. Each finding is the result of a check, never a guess. Files are checked on Linux
//! only; elsewhere the findings come from the probes. Knows nothing about how findings are shown.

mod apis;
mod machine;
mod packages;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use crate::devices::{DeviceOptions, Devices};
use machine::Machine;
use ragtag_devices::{BackendReport, Report, Requested};
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The check passed.
    Ok,
    /// Not a problem, but useful to know.
    Note,
    /// Devices are, or may be, missing because of this.
    Missing,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject of the check: `build`, `GPU`, `library`, `driver`, `node`, `compiler`, `products`, `variable`
    /// or `devices`.
    pub subject: &'static str,
    /// Severity.
    pub state: State,
    /// Description of the result.
    pub found: String,
    /// Suggested fix.
    pub advice: Option<String>,
}

impl Finding {
    fn new(subject: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { subject, state, found: found.into(), advice: None }
    }

    fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}

/// Findings about one API. The first diagnosis is about `ragtag` itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Name of the API, as in `cuda:0`.
    pub api: String,
    /// Findings, in order of relevance.
    pub findings: Vec<Finding>,
}

/// Environment variables that affect every API.
const VARIABLES: [&str; 4] = ["RAGTAG_DEVICES", "RAGTAG_STRICT", "RAGTAG_PROBE_LIMIT", "RAGTAG_CACHE_DIR"];

/// Checks what the APIs of this build need on this machine. Probes devices but opens none.
pub fn examine(options: &DeviceOptions) -> Vec<Diagnosis> {
    // Skips values that are not UTF-8; no check uses them.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let machine = Machine::new("/".into(), variables.collect());
    diagnose(&Devices::survey(options), options, &machine)
}

fn diagnose(report: &Report, options: &DeviceOptions, machine: &Machine) -> Vec<Diagnosis> {
    let mut selection = vec![selection(report, options)];
    selection.extend(apis::variables(machine, &VARIABLES));
    let ragtag = Diagnosis { api: "ragtag".into(), findings: selection };
    let of = |backend: &BackendReport| Diagnosis {
        api: backend.name.clone(),
        findings: apis::findings(backend, report, machine),
    };
    std::iter::once(ragtag).chain(report.backends.iter().map(of)).collect()
}

/// Finding about the current device selection.
fn selection(report: &Report, options: &DeviceOptions) -> Finding {
    let requested = Requested::new(options.requested.as_deref(), options.from_environment.as_deref());
    match requested.and_then(|requested| requested.choose(report)) {
        Ok(choice) => Finding::new("devices", State::Ok, choice.to_string()),
        Err(error) => Finding::new("devices", State::Missing, error.to_string())
            .advise("see --device in ragtag devices --help"),
    }
}
