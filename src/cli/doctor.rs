//! Implements `ragtag devices --doctor`, which prints what each API requires, what is missing, and how to
//! install it.

use super::output::{print_json, show, table};
use crate::devices::DeviceOptions;
use crate::doctor::{Diagnosis, State, examine};
use crate::error::Result;
use serde_json::json;

pub(super) fn run(options: &DeviceOptions, as_json: bool) -> Result<()> {
    let found = examine(options);
    if as_json { print_json(&json!({ "apis": found })) } else { show(&as_table(&found)) }
}

fn as_table(found: &[Diagnosis]) -> String {
    let mut table = table(&["API", "check", "state", "found", "fix"]);
    for Diagnosis { api, findings } in found {
        for (index, finding) in findings.iter().enumerate() {
            let state = match finding.state {
                State::Ok => "ok",
                State::Note => "note",
                State::Missing => "MISSING",
            };
            table.add_row([
                if index == 0 { api.clone() } else { String::new() },
                finding.subject.into(),
                state.into(),
                finding.found.clone(),
                finding.advice.clone().unwrap_or_default(),
            ]);
        }
    }
    format!("{table}\n")
}
