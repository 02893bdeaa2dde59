//! Measures devices and links for a plan: from the cache, or with a calibration, or with a probe of links.

use super::wanted::Wanted;
use crate::cli::error::{Error, Result};
use crate::cli::output::{inform, note};
use crate::cli::{progress, strict};
use crate::{
    Calibration, CalibrationOptions, Devices, LinkOptions, LinkReport, Model, Planner, ProbedLink,
    profile_age,
};
use std::sync::OnceLock;

/// Returns `planner` with the measured speeds of devices and links. Excludes devices that cannot be opened or that
/// have no verified route, or returns an error for them if `is_strict` is set.
pub(super) fn measured(
    planner: Planner,
    model: &Model,
    devices: &Devices,
    wanted: &Wanted<'_>,
    is_strict: bool,
) -> Result<Planner> {
    let can_calibrate = wanted.is_calibrated() && model.graph().weights().without_data().is_none();
    let options = wanted.calibration();
    // If a device fails, the run reports its error.
    let failed = |error| note(&format!("calibration failed, planning with assumed speeds: {error}"));
    if can_calibrate && let Ok(calibration) = calibrated(model, devices, &options).map_err(failed) {
        if let Some(cause) = &calibration.unkept {
            note(&format!("note: {}", Error::Unkept(cause.clone())));
        }
        if is_strict {
            strict::check_calibration(&calibration)?;
        }
        return Ok(planner.calibrated(&calibration));
    }
    let links = probed(devices, wanted.is_calibrated());
    if is_strict {
        strict::check_links(devices, &links)?;
    }
    let unverified = links.links.iter().filter_map(ProbedLink::unverified);
    unverified.for_each(|why| note(&format!("note: {why}")));
    let last = if can_calibrate { last_good(model, devices, &options) } else { None };
    Ok(last.iter().fold(planner, Planner::calibrated).probed(&links))
}

/// Calibrates the devices and shows a progress bar. Prints nothing if all results are cached.
pub(crate) fn calibrated(
    model: &Model,
    devices: &Devices,
    options: &CalibrationOptions,
) -> Result<Calibration> {
    let bar = OnceLock::new();
    let progress = |done: u64, total: u64| {
        let bar = bar.get_or_init(|| {
            inform("calibrating: timing this model's layers on each device (cached)");
            progress::steps("calibrating", total)
        });
        bar.set_position(done);
    };
    let calibration = Calibration::run(model, devices, options, &progress);
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    let calibration = calibration?;
    note_probed(&calibration.links);
    warnings(&calibration).for_each(|warning| note(&format!("note: {warning}")));
    Ok(calibration)
}

/// Returns all warnings of a calibration.
pub(crate) fn warnings(calibration: &Calibration) -> impl Iterator<Item = String> {
    let unrouted = calibration.unrouted.iter().map(|(label, why)| {
        format!("leaving {label} out: {why} (to probe again, use ragtag devices --links --reprobe)")
    });
    unrouted.chain(calibration.warnings.iter().cloned())
}

/// Returns the profiles in the cache, even expired ones, for a placement whose calibration has failed. Prints their
/// age. Returns `None` if there are none.
fn last_good(model: &Model, devices: &Devices, options: &CalibrationOptions) -> Option<Calibration> {
    let calibration = Calibration::kept(model, devices, options).ok()?;
    for (label, profile) in &calibration.profiles {
        note(&format!("note: using the speeds of {label} that were measured {}", profile_age(profile)));
    }
    (!calibration.profiles.is_empty()).then_some(calibration)
}

/// Returns the links for a plan without calibration. If calibration is on, but impossible, makes a quick probe of
/// links without a cached probe. If the user turned it off, uses only cached probes.
fn probed(devices: &Devices, is_calibrated: bool) -> LinkReport {
    let kept = || LinkReport::kept(devices, None);
    if !is_calibrated || devices.selected().len() < 2 {
        return kept();
    }
    // If a device fails, the run reports its error.
    let report = LinkReport::run(devices, &LinkOptions::quick(None), &|_, _| ()).unwrap_or_else(|_| kept());
    note_probed(&report);
    report
}

/// Prints the routes of each link that has just been probed.
fn note_probed(report: &LinkReport) {
    for link in &report.links {
        if report.probed.iter().any(|[from, to]| [from, to] == [&link.from, &link.to]) {
            // Wrong bytes are a defect, so they are shown even with `--quiet`.
            let say = if link.tried.iter().any(|tried| tried.corrupt) { note } else { inform };
            say(&link.summary());
        }
    }
}
