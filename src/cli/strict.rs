//! Checks that `--strict` makes before a run.

use super::error::{Error, Result};
use crate::{Calibration, Devices, LinkReport, Model, ProbedLink};
use ragtag_hal::{Adapter, AdapterKind};

/// Returns an error if a selected device emulates a GPU in software, if a device or a link is throttled, or
/// if the model has suspicious weights.
pub(super) fn check(devices: &Devices, model: &Model) -> Result<()> {
    let mut findings = findings(devices);
    findings.extend(crate::suspicious_weights(model)?);
    refuse(findings)
}

/// Returns an error if a selected device emulates a GPU in software, or if a device or a link is throttled.
pub(super) fn check_devices(devices: &Devices) -> Result<()> {
    refuse(findings(devices))
}

fn findings(devices: &Devices) -> Vec<String> {
    let software = devices.selected().iter().filter(|a: &&Adapter| a.kind == AdapterKind::Software);
    let slowed = devices.throttles().iter().map(|throttle| format!("{throttle} is throttled (--throttle)"));
    software.map(|a| format!("{} ({}) is a software device", a.label(), a.name)).chain(slowed).collect()
}

/// Returns an error if the calibration could not use a device.
pub(super) fn check_calibration(calibration: &Calibration) -> Result<()> {
    refuse(calibration.closed.iter().map(|device| format!("cannot use {device}")).collect())
}

/// Returns an error in the cases of [`check_devices`], and if a link has no verified route.
pub(super) fn check_links(devices: &Devices, report: &LinkReport) -> Result<()> {
    let unverified = report.links.iter().filter_map(ProbedLink::unverified);
    refuse(findings(devices).into_iter().chain(unverified).collect())
}

/// Returns the refusal of a device that has failed its self-test, or `error` if it is another one.
pub(super) fn refused(error: Error) -> Error {
    match error {
        Error::Library(crate::Error::Untrusted { .. }) => Error::Strict { findings: vec![error.to_string()] },
        other => other,
    }
}

/// Returns an error if there are findings.
pub(super) fn refuse(findings: Vec<String>) -> Result<()> {
    if findings.is_empty() { Ok(()) } else { Err(Error::Strict { findings }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_cannot_be_opened_are_refused_by_name() {
        check_calibration(&Calibration::default()).unwrap();
        let left_out = Calibration { closed: vec!["vulkan:1".into()], ..Calibration::default() };
        let error = check_calibration(&left_out).unwrap_err();
        assert_eq!(error.to_string(), "refused by --strict: cannot use vulkan:1");
        assert_eq!(error.exit_code(), 8);
    }

    #[test]
    fn links_without_a_verified_route_are_refused() {
        let devices = Devices::probe(&crate::DeviceOptions::selecting("cpu")).unwrap();
        check_links(&devices, &LinkReport::default()).unwrap();
        let json = r#"{"from": "a:0", "to": "b:0", "class": "host", "numa_distance": null, "route": null,
            "latency_us": null, "rates": [], "quick": false, "tried": [{"route": "peer", "why": "no", "corrupt": true,
            "hops": [], "rates": []}], "measured_unix_s": 0}"#;
        let links = vec![serde_json::from_str(json).unwrap()];
        let error = check_links(&devices, &LinkReport { links, ..LinkReport::default() }).unwrap_err();
        let text = "refused by --strict: no verified route from a:0 to b:0: peer: no";
        assert_eq!((error.to_string().as_str(), error.exit_code()), (text, 8));
    }
}
