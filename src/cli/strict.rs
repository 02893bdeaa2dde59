//! `--strict`: what is refused before a run.

use crate::calibrate::Calibration;
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_hal::{Adapter, AdapterKind};

/// Refuses software devices where a GPU was asked for, handicaps, and suspicious weights.
pub(super) fn check(devices: &Devices, model: &Model) -> Result<()> {
    let mut findings = findings(devices);
    findings.extend(crate::strict::suspicious_weights(model)?);
    refuse(findings)
}

/// Refuses software devices where a GPU was asked for, and handicaps.
pub(super) fn check_devices(devices: &Devices) -> Result<()> {
    refuse(findings(devices))
}

fn findings(devices: &Devices) -> Vec<String> {
    let software = devices.selected().iter().filter(|a: &&Adapter| a.kind == AdapterKind::Software);
    let slowed = devices.handicaps().iter().map(|handicap| format!("{handicap} is slowed on purpose"));
    software
        .map(|a| format!("{} ({}) is a GPU API executed by the processor", a.label(), a.name))
        .chain(slowed)
        .collect()
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
