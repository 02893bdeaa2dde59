//! `--strict`: what is refused before a run.

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;

/// Refuses software devices where a GPU was asked for, handicaps, and suspicious weights.
pub(super) fn check(devices: &Devices, model: &Model) -> Result<()> {
    let mut findings = devices.strict_findings();
    findings.extend(crate::strict::suspicious_weights(model)?);
    refuse(findings)
}

/// Refuses software devices where a GPU was asked for, and handicaps.
pub(super) fn check_devices(devices: &Devices) -> Result<()> {
    refuse(devices.strict_findings())
}

fn refuse(findings: Vec<String>) -> Result<()> {
    if findings.is_empty() { Ok(()) } else { Err(Error::Strict { findings }) }
}
