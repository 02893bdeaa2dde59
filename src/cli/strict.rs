//! `--strict`: what is refused before a run.

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;

/// Refuses software devices where a GPU was asked for, fallbacks, and suspicious weights.
pub(super) fn check(devices: &Devices, model: &Model) -> Result<()> {
    let mut findings = devices.strict_findings();
    findings.extend(crate::strict::suspicious_weights(model)?);
    if findings.is_empty() { Ok(()) } else { Err(Error::Strict { findings }) }
}
