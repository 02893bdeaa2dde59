//! Implements `ragtag calibrate`, and the calibration that other commands run before planning.

use super::args::CalibrateArgs;
use super::files::{self, is_standard, write_file};
use super::output::{inform, note, out_width, print, print_json, show, table};
use super::progress;
use super::wanted::{Wanted, usual_kv};
use crate::{
    Calibration, CalibrationOptions, Devices, Error, MAX_CHUNK, Model, Planner, Result, profile_age,
};
use ragtag_planner::cost::{KindProfile, Profile, Roofline, TimeSample};
use serde_json::json;
use std::sync::OnceLock;

pub(super) fn run(args: &CalibrateArgs) -> Result<()> {
    let is_printed = args.export.as_deref().is_some_and(is_standard);
    if is_printed && args.json {
        return Err(Error::Usage("only one of --json and --export can go to standard output".into()));
    }
    files::check(args.export.iter().filter(|path| !is_standard(path)), args.model.path())?;
    let model = super::open_model(&args.model)?;
    let mut selection = super::device_options(&args.devices);
    if args.every_api {
        // `Devices::probe` would probe only the APIs that the selection names.
        selection.requested = Some(Devices::probe_all(&selection)?.labels_of_every_api().join(","));
    }
    let devices = super::opened(Devices::probe(&selection))?;
    if args.devices.strict {
        super::strict::check(&devices, &model)?;
    }
    let mut options = CalibrationOptions::default();
    options.activations = args.activations;
    options.kv = args.kv.types(usual_kv(args.activations))?;
    options.chunk = args.chunk.unwrap_or(MAX_CHUNK);
    options.sequences = args.parallel;
    options.seconds = args.seconds;
    options.limit = None;
    options.force = args.force;
    options.max_load = f64::from(args.load.max_load) / 100.0;
    // Timing takes memory of the process, so this counts the free memory before, as other commands do.
    let planner = Planner::new(&model).devices(&devices);
    let calibration = measured(&model, &devices, &options)?;
    if args.devices.strict {
        super::strict::check_calibration(&calibration)?;
    }
    let printed = match (is_printed, args.json) {
        (true, _) => Ok(()),
        (false, true) => print_json(&as_json(&calibration)),
        (false, false) => show(&as_table(&calibration, out_width())),
    };
    let exported = args.export.iter().try_for_each(|path| {
        let fleet = as_fleet(planner.clone().calibrated(&calibration), &devices)?;
        if is_printed { print(&fleet) } else { write_file(path, fleet.as_bytes()) }
    });
    printed.and(exported).and(calibration.unkept.map_or(Ok(()), |cause| Err(Error::Unkept(cause))))
}

/// Returns the devices and links of `planner` in the format of fleets.
fn as_fleet(planner: Planner, devices: &Devices) -> Result<String> {
    let mut fleet = planner.to_fleet();
    for device in &mut fleet.devices {
        let adapter = device.measured.as_ref().and_then(|facts| devices.report().adapter(&facts.label));
        device.kind = adapter.map(|adapter| adapter.kind);
    }
    fleet.facts().map_err(|cause| Error::Fleet { of: "--export".into(), cause })?;
    Ok(fleet.to_json())
}

/// Returns the options of the calibration that a placement needs.
pub(super) fn options(wanted: &Wanted<'_>) -> CalibrationOptions {
    let mut options = CalibrationOptions::default();
    options.activations = wanted.activations();
    options.kv = wanted.kv();
    options.sequences = wanted.sequences();
    options.max_load = wanted.max_load();
    options
}

/// Returns the calibration for the selected devices, from the cache or from new measurements. Returns `None`
/// if the user turned calibration off, if it fails, or if the model has no weights.
pub(super) fn for_placement(model: &Model, devices: &Devices, wanted: &Wanted<'_>) -> Option<Calibration> {
    if !wanted.is_calibrated() || model.graph().weights().without_data().is_some() {
        return None;
    }
    let options = options(wanted);
    // If a device fails, the run reports its error.
    let failed = |error| note(&format!("calibration failed, planning with assumed speeds: {error}"));
    let calibration = measured(model, devices, &options).map_err(failed).ok()?;
    if let Some(cause) = &calibration.unkept {
        note(&format!("note: {}", Error::Unkept(cause.clone())));
    }
    Some(calibration)
}

/// Returns the profiles in the cache, even expired ones, for a placement whose calibration has failed. Prints their
/// age. Returns `None` if there are none, or if the user turned calibration off.
pub(super) fn last_good(model: &Model, devices: &Devices, wanted: &Wanted<'_>) -> Option<Calibration> {
    if !wanted.is_calibrated() || model.graph().weights().without_data().is_some() {
        return None;
    }
    let calibration = Calibration::kept(model, devices, &options(wanted)).ok()?;
    for (label, profile) in &calibration.profiles {
        note(&format!("note: using the speeds of {label} that were measured {}", profile_age(profile)));
    }
    (!calibration.profiles.is_empty()).then_some(calibration)
}

/// Calibrates the devices and shows a progress bar. Prints nothing if all results are cached.
fn measured(model: &Model, devices: &Devices, options: &CalibrationOptions) -> Result<Calibration> {
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
    super::links::note_probed(&calibration.links);
    calibration.warnings.iter().for_each(|warning| note(&format!("note: {warning}")));
    Ok(calibration)
}

fn as_json(calibration: &Calibration) -> serde_json::Value {
    let profiles: Vec<&Profile> = calibration.profiles.iter().map(|(_, profile)| profile.as_ref()).collect();
    json!({
        "profiles": profiles,
        "links": calibration.links.planned(),
        "file_rates": calibration.file_rates,
        "timed": calibration.timed,
        "doubtful": calibration.doubtful,
        "warnings": calibration.warnings,
        "unkept": calibration.unkept,
    })
}

pub(super) fn as_table(calibration: &Calibration, width: Option<u16>) -> String {
    let columns = ["device", "segment", ">rows", ">positions", ">time", ">spread", ">of roofline"];
    let mut times = table(&columns, width);
    for (label, profile) in &calibration.profiles {
        for kind in &profile.kinds {
            for sample in &kind.samples {
                times.add_row([
                    label.clone(),
                    format!("{:?}", kind.key.kind).to_lowercase(),
                    sample.at.rows.to_string(),
                    if kind.key.attends() { format!("{:.0}", sample.at.positions) } else { "-".into() },
                    microseconds(sample.median_us),
                    microseconds(sample.spread_us),
                    profile.roofline.as_ref().map_or("-".into(), |roofline| share(roofline, kind, sample)),
                ]);
            }
        }
    }
    let columns = [
        "device",
        ">per stage",
        "+>hand-over",
        ">token return",
        "+>per row",
        "+>copy latency",
        "+>copy rate",
        ">weights",
        ">compute",
    ];
    let mut overheads = table(&columns, width);
    for (label, profile) in &calibration.profiles {
        let fitted = profile.roofline.as_ref();
        let rate = |value: Option<f64>, unit: &str| {
            value.map_or("-".into(), |rate| format!("{:.1} G{unit}/s", rate / 1e9))
        };
        overheads.add_row([
            label.clone(),
            microseconds(profile.stage_us),
            microseconds(profile.hand_over_us),
            microseconds(profile.token_return.latency_us),
            microseconds(profile.token_return.row_us),
            microseconds(profile.host_latency_us),
            rate(Some(profile.host_bandwidth_bytes_per_s), "B"),
            rate(fitted.map(|roofline| roofline.bandwidth_bytes_per_s), "B"),
            rate(fitted.map(|roofline| roofline.flops_per_s), "FLOP"),
        ]);
    }
    let known = calibration.links.planned().known;
    let mut links = table(&["from", "to", "route", ">latency", ">rate"], width);
    for (from, to, facts) in &known {
        links.add_row([
            from.clone(),
            to.clone(),
            facts.routes.iter().next().map_or("none", |route| route.name()).into(),
            microseconds(facts.latency_us.value),
            format!("{:.1} GB/s", facts.bandwidth_bytes_per_s.value / 1e9),
        ]);
    }
    match known.is_empty() {
        true => format!("{times}\n\n{overheads}\n"),
        false => format!("{times}\n\n{overheads}\n\n{links}\n"),
    }
}

/// Formats how close a segment comes to the device's peak rates: its shortest possible time as a percentage
/// of its measured time.
fn share(roofline: &Roofline, kind: &KindProfile, sample: &TimeSample) -> String {
    let work = kind.key.work(&sample.at);
    let moving_us = work.bytes / roofline.bandwidth_bytes_per_s * 1e6;
    let computing_us = work.flops / roofline.flops_per_s * 1e6;
    format!("{:.0} %", 100.0 * moving_us.max(computing_us) / sample.median_us.max(1e-3))
}

fn microseconds(us: f64) -> String {
    if us >= 1000.0 { format!("{:.2} ms", us / 1e3) } else { format!("{us:.1} µs") }
}
