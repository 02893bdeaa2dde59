//! Implements `ragtag devices --doctor`, which prints what each API requires, what is missing, and how to
//! install it.

use super::error::Result;
use super::output::{is_wide, out_width, print_json, show, table};
use crate::DeviceOptions;
use crate::doctor::{Diagnosis, Finding, State, examine};
use serde_json::json;

/// Kind of the findings about the devices of an API.
const DEVICES: &str = "devices";

pub(super) fn run(options: &DeviceOptions, as_json: bool) -> Result<()> {
    let found = examine(options);
    match as_json {
        true => print_json(&json!({ "apis": found })),
        false if is_wide() => show(&every_check(&found, out_width())),
        false => show(&digest(&found, out_width())),
    }
}

/// Formats the problems and their fixes, followed by a line for each API.
pub(super) fn digest(found: &[Diagnosis], width: Option<u16>) -> String {
    let mut text = match problems(found) {
        problems if problems.is_empty() => "no problems found\n".to_owned(),
        problems => {
            let mut table = table(&["API", "check", "problem", "fix"], width);
            for (apis, problem) in problems {
                let advice = problem.advice.clone().unwrap_or_default();
                table.add_row([apis.join(", "), problem.subject.into(), problem.found.clone(), advice]);
            }
            format!("{table}\n")
        }
    };
    let mut table = table(&["API", "state", "devices"], width);
    for Diagnosis { api, findings } in found {
        let devices = || findings.iter().filter(|finding| finding.subject == DEVICES);
        let is_found = devices().next().is_some() && devices().all(|finding| finding.state == State::Ok);
        let lines: Vec<_> = devices().map(|finding| finding.found.as_str()).collect();
        let lines = if lines.is_empty() { "not in this build".into() } else { lines.join("; ") };
        let state = if is_found { "ok" } else { "none" };
        table.add_row([api.clone(), state.into(), lines]);
    }
    text += &format!("\n{table}\n\n--wide lists all checks\n");
    text
}

/// Returns the problems that have a fix or name a part, each with the APIs concerned.
fn problems(found: &[Diagnosis]) -> Vec<(Vec<&str>, &Finding)> {
    let mut problems: Vec<(Vec<&str>, &Finding)> = Vec::new();
    for Diagnosis { api, findings } in found {
        let is_problem = |finding: &&Finding| {
            finding.state == State::Missing && (finding.subject != DEVICES || finding.advice.is_some())
        };
        for finding in findings.iter().filter(is_problem) {
            match problems.iter_mut().find(|(_, known)| *known == finding) {
                Some((apis, _)) => apis.push(api),
                None => problems.push((vec![api], finding)),
            }
        }
    }
    problems
}

/// Formats all findings.
pub(super) fn every_check(found: &[Diagnosis], width: Option<u16>) -> String {
    let mut table = table(&["API", "check", "state", "found", "fix"], width);
    for Diagnosis { api, findings } in found {
        for (index, finding) in findings.iter().enumerate() {
            table.add_row([
                if index == 0 { api.clone() } else { String::new() },
                finding.subject.into(),
                word(finding.state).into(),
                finding.found.clone(),
                finding.advice.clone().unwrap_or_default(),
            ]);
        }
    }
    format!("{table}\n")
}

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Note => "note",
        State::Missing => "MISSING",
    }
}
