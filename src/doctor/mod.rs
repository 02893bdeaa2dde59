//! Diagnosis of missing devices. The doctor checks the build, the libraries, the drivers and the permissions
//! that each API needs, and suggests fixes.
//!
//! The doctor never modifies the system. It checks files only on Linux. On other systems, its findings come
//! only from probing the backends.

mod apis;
mod machine;
mod packages;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use crate::{DeviceOptions, Devices};
use machine::Machine;
use ragtag_devices::{BackendReport, Report, Requested};
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The check passed.
    Ok,
    /// The finding is not a problem, but may be useful.
    Note,
    /// The finding may be the reason why devices are missing.
    Missing,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind of item that was checked: `build`, `GPU`, `library`, `driver`, `node`, `compiler`, `products`,
    /// `variable`, `devices` or `self-test`.
    pub subject: &'static str,
    /// Severity of the finding.
    pub state: State,
    /// Description of what the check found.
    pub found: String,
    /// Suggested fix, if any.
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

/// Findings about one API, or about Ragtag itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Name of the API, for example `cuda`, or `ragtag` for Ragtag itself.
    pub api: String,
    /// Findings, in order of relevance.
    pub findings: Vec<Finding>,
}

/// Environment variables that affect Ragtag with every API.
const VARIABLES: [&str; 5] =
    ["RAGTAG_DEVICES", "RAGTAG_MEMORY", "RAGTAG_STRICT", "RAGTAG_PROBE_LIMIT", "RAGTAG_CACHE_DIR"];

/// Checks whether this machine meets the requirements of each API. Probes devices but does not open them. With
/// [`DeviceOptions::probe_child`], opens the libraries of OpenCL's and Vulkan's drivers in child processes. The
/// first diagnosis is about Ragtag itself. Each of the others is about one API.
pub fn examine(options: &DeviceOptions) -> Vec<Diagnosis> {
    // Variables whose values are not UTF-8 are skipped, because no check uses them.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let machine = Machine::new("/".into(), variables.collect()).opening_with(options.probe_child.clone());
    let mut report = Devices::survey(options);
    report.read_sensors();
    diagnose(&report, options, &machine)
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

/// Returns a finding that shows the current device selection, or the reason why it selects no device.
fn selection(report: &Report, options: &DeviceOptions) -> Finding {
    let requested = Requested::new(options.requested.as_deref(), options.from_environment.as_deref());
    match requested.and_then(|requested| requested.choose(report)) {
        Ok(choice) => Finding::new("devices", State::Ok, choice.to_string()),
        Err(error) => Finding::new("devices", State::Missing, error.to_string())
            .advise("see --device in ragtag devices --help"),
    }
}
