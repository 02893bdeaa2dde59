//! Implements `ragtag calibrate`, and the calibration that other commands run before planning.

use super::args::CalibrateArgs;
use super::error::{Error, Result};
use super::files::{self, is_standard, write_file};
use super::output::{out_width, print, print_json, show, table};
use super::start::speeds::{calibrated, warnings};
use super::start::wanted::usual_kv;
use crate::{Calibration, CalibrationOptions, Devices, MAX_CHUNK, Model, Planner};
use ragtag_planner::cost::{KindProfile, Profile, Roofline, TimeSample};
use serde_json::json;

pub(super) fn run(args: &CalibrateArgs) -> Result<()> {
    let is_printed = args.export.as_deref().is_some_and(is_standard);
    if is_printed && args.json {
        return Err(Error::Usage("only one of --json and --export can go to standard output".into()));
    }
    files::check(args.export.iter().filter(|path| !is_standard(path)), args.model.path())?;
    let model = args.model.path().map_or_else(Model::bundled, Model::open)?;
    let mut selection = super::start::devices::options(&args.devices);
    if args.every_api {
        // `Devices::probe` would probe only the APIs that the selection names.
        selection.requested = Some(Devices::probe_all(&selection)?.labels_of_every_api().join(","));
    }
    let devices = super::start::devices::selected(&selection)?;
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
    let calibration = calibrated(&model, &devices, &options)?;
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
    fleet.facts().map_err(|cause| crate::Error::Fleet { of: "--export".into(), cause })?;
    Ok(fleet.to_json())
}

fn as_json(calibration: &Calibration) -> serde_json::Value {
    let profiles: Vec<&Profile> = calibration.profiles.iter().map(|(_, profile)| profile.as_ref()).collect();
    json!({
        "profiles": profiles,
        "links": calibration.links.planned(),
        "file_rates": calibration.file_rates,
        "timed": calibration.timed,
        "doubtful": calibration.doubtful,
        "warnings": warnings(calibration).collect::<Vec<_>>(),
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
