//! Why an API shows no device, and what would help: what is in this build, what the machine has, what is missing.
//!
//! Nothing is changed and nothing is guessed: each finding is something that was looked at. The files that are read are
//! Linux's; elsewhere there is only what the probes say. This module must not know how findings are shown.

mod apis;
mod machine;
mod packages;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use crate::devices::{DeviceOptions, Devices};
use machine::Machine;
use ragtag_devices::{BackendReport, Report, Requested};
use serde::Serialize;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Nothing is wrong, but it explains something.
    Note,
    /// Devices are not found because of this, or may not be.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `build`, `GPU`, `library`, `driver`, `node`, `compiler`, `variable`, `devices`.
    pub subject: &'static str,
    /// How it is to be taken.
    pub state: State,
    /// What was found, or not.
    pub found: String,
    /// What would help.
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

/// What was found about one API; the first is about `ragtag` itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Its name, as in `cuda:0`.
    pub api: String,
    /// What was looked at, in the order in which it matters.
    pub findings: Vec<Finding>,
}

/// The variables that choose devices whatever the API.
const VARIABLES: [&str; 4] = ["RAGTAG_DEVICES", "RAGTAG_STRICT", "RAGTAG_PROBE_LIMIT", "RAGTAG_CACHE_DIR"];

/// Looks at everything that this build's APIs need on this machine. Devices are probed, none is opened.
pub fn examine(options: &DeviceOptions) -> Vec<Diagnosis> {
    // Values that are not text have no meaning to anyone here.
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

/// What the selection in force comes to.
fn selection(report: &Report, options: &DeviceOptions) -> Finding {
    let requested = Requested::new(options.requested.as_deref(), options.from_environment.as_deref());
    match requested.and_then(|requested| requested.choose(report)) {
        Ok(choice) => Finding::new("devices", State::Ok, choice.to_string()),
        Err(error) => Finding::new("devices", State::Missing, error.to_string())
            .advise("see --device in ragtag devices --help"),
    }
}
