//! Implements `ragtag devices --links`, which shows how devices are connected and which routes keep data
//! intact, and `ragtag bench links`, which measures the links.

use super::args::{BenchLinksArgs, DeviceArgs, DevicesArgs};
use super::error::{Error, Result};
use super::files::{self, is_standard, write_file};
use super::output::{bytes, note, out_width, print, print_json, set_quiet, show, table};
use super::progress;
use crate::{Devices, LinkOptions, LinkReport, ProbedLink};
use std::cell::OnceCell;
use std::path::Path;
use std::time::Duration;

/// Selection if the user selects no devices. The links between GPUs and the processor are of interest too.
const USUAL_SELECTION: &str = "auto,cpu";
/// Time limit of `ragtag bench links`.
const BENCH_LIMIT: Duration = Duration::from_secs(120);

/// Runs `ragtag devices --links`.
pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    let is_drawn = args.svg.as_deref().is_some_and(is_standard);
    if is_drawn && args.json {
        return Err(Error::Usage("only one of --json and --svg can go to standard output".into()));
    }
    files::check(args.svg.as_deref().filter(|path| !is_standard(path)), [])?;
    let mut options = LinkOptions::default();
    options.reprobe = args.reprobe;
    let (devices, report) = probed(&args.devices, &options)?;
    let printed = match (args.json, is_drawn) {
        (true, _) => print_json(&report),
        (false, true) => Ok(()),
        (false, false) => show(&as_table(&report, out_width())),
    };
    let drawn = args.svg.as_deref().map_or(Ok(()), |path| draw(path, &report));
    // The links are printed even if `--strict` refuses them.
    let strict = if args.devices.strict { super::strict::check_links(&devices, &report) } else { Ok(()) };
    printed.and(drawn).and(strict).and(report.unkept.map_or(Ok(()), |cause| Err(Error::Unkept(cause))))
}

/// Writes a drawing of the links.
fn draw(path: &Path, report: &LinkReport) -> Result<()> {
    let drawing = crate::pictures::links(report);
    if is_standard(path) { print(&drawing) } else { write_file(path, drawing.as_bytes()) }
}

/// Runs `ragtag bench links`. Measures all links again, with more repetitions and a longer time limit.
pub(super) fn bench(args: &BenchLinksArgs) -> Result<()> {
    set_quiet(args.quiet);
    let mut options = LinkOptions::default();
    options.reprobe = true;
    options.repetitions *= args.repetitions as usize;
    options.limit = BENCH_LIMIT;
    let (devices, report) = probed(&args.devices, &options)?;
    let printed = if args.json { print_json(&report) } else { show(&as_bench_table(&report, out_width())) };
    let strict = if args.devices.strict { super::strict::check_links(&devices, &report) } else { Ok(()) };
    printed.and(strict)
}

/// Probes the links of the selected devices and shows a progress bar.
fn probed(args: &DeviceArgs, options: &LinkOptions) -> Result<(Devices, LinkReport)> {
    let mut selection = super::start::devices::options(args);
    let is_blank = |text: &Option<String>| text.as_ref().is_none_or(|text| text.trim().is_empty());
    if selection.requested.is_none() && is_blank(&selection.from_environment) {
        selection.requested = Some(USUAL_SELECTION.into());
    }
    let devices = super::start::devices::selected(&selection)?;
    let bar = OnceCell::new();
    let progress = |done: u64, total: u64| {
        bar.get_or_init(|| progress::steps("probing links", total)).set_position(done);
    };
    let report = LinkReport::run(&devices, options, &progress);
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    let report = report?;
    report.warnings.iter().for_each(|warning| note(&format!("note: {warning}")));
    Ok((devices, report))
}

pub(super) fn as_table(report: &LinkReport, width: Option<u16>) -> String {
    let columns = [
        "link",
        ">route",
        "class",
        "+>NUMA",
        ">µs",
        "+>64 KiB",
        ">1 MiB",
        ">16 MiB",
        "+>both ways",
        "verified",
    ];
    let mut table = table(&columns, width);
    for link in &report.links {
        let rate = |bytes: u64| link.rates.iter().find(|rate| rate.bytes == bytes);
        let alone = |bytes: u64| gigabytes(rate(bytes).map(|rate| rate.bytes_per_s));
        table.add_row([
            name(link),
            route(link),
            link.class.to_string(),
            link.numa_distance.map_or("-".into(), |distance| distance.to_string()),
            link.latency_us.map_or("-".into(), |us| format!("{us:.1}")),
            alone(64 << 10),
            alone(1 << 20),
            alone(16 << 20),
            gigabytes(rate(16 << 20).and_then(|rate| rate.both_bytes_per_s)),
            if link.route.is_some() { "yes" } else { "no" }.to_owned(),
        ]);
    }
    format!("{table}\nµs: time of 4 KiB in a run. Rates are in GB/s.\n{}", failures(report))
}

pub(super) fn as_bench_table(report: &LinkReport, width: Option<u16>) -> String {
    let columns = ["link", "route", ">size", "+>time", ">alone", ">both", ">busy", ">both busy"];
    let mut table = table(&columns, width);
    for link in &report.links {
        for rate in &link.rates {
            table.add_row([
                name(link),
                route(link),
                bytes(rate.bytes),
                format!("{:.1} µs", rate.bytes as f64 / rate.bytes_per_s * 1e6),
                gigabytes(Some(rate.bytes_per_s)),
                gigabytes(rate.both_bytes_per_s),
                gigabytes(Some(rate.busy_bytes_per_s)),
                gigabytes(rate.both_busy_bytes_per_s),
            ]);
        }
    }
    format!(
        "{table}\nRates are in GB/s (10⁹ bytes per second) in the direction of the link.\n\
         alone: only this link transfers. both: the opposite link transfers too.\n\
         busy: both devices compute too.\n{}",
        failures(report)
    )
}

fn name(link: &ProbedLink) -> String {
    format!("{} → {}", link.from, link.to)
}

fn route(link: &ProbedLink) -> String {
    link.route.map_or("none".into(), |route| route.name().into())
}

fn gigabytes(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or("-".into(), |rate| match rate / 1e9 {
        rate if rate < 9.995 => format!("{rate:.2}"),
        rate => format!("{rate:.1}"),
    })
}

/// Returns a line for each link without a verified route.
fn failures(report: &LinkReport) -> String {
    report.links.iter().filter_map(ProbedLink::unverified).map(|failure| failure + "\n").collect()
}
