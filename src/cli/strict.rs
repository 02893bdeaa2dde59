//! `--strict`: what is refused before a run.

use crate::calibrate::Calibration;
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

/// Refuses that devices are left out because they do not open.
pub(super) fn check_calibration(calibration: &Calibration) -> Result<()> {
    refuse(calibration.closed.iter().map(|device| format!("{device} does not open")).collect())
}

fn refuse(findings: Vec<String>) -> Result<()> {
    if findings.is_empty() { Ok(()) } else { Err(Error::Strict { findings }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_were_left_out_are_refused_by_name() {
        check_calibration(&Calibration::default()).unwrap();
        let left_out = Calibration { closed: vec!["vulkan:1".into()], ..Calibration::default() };
        let error = check_calibration(&left_out).unwrap_err();
        assert_eq!(error.to_string(), "refused by --strict: vulkan:1 does not open");
        assert_eq!(error.exit_code(), 8);
    }
}
