//! Implements `ragtag simulate`, which runs a plan under a load of requests on a virtual clock.

use super::args::SimulateArgs;
use super::error::{Error, Result};
use super::files::{self, cannot_read, write_file};
use super::output::{TextTable, bytes, inform, out_width, print_json, show, table};
use super::plan_table::summary;
use super::start::model::open_metadata;
use super::start::placed::{fleet, for_fleet_or_devices};
use super::start::wanted::Needs;
use crate::Trace;
use crate::files::read_text;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::core::Want;
use ragtag_scheduler::sim::{Arrivals, DrawnLoad, Load, Percentiles, SimRequest, SimSummary};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Linux's shortest time after which TCP sends a segment again.
const RETRANSMISSION_NS: u64 = 200_000_000;

/// Default number of concurrent sequences.
const PARALLEL: u32 = 8;

pub(super) fn run(args: &SimulateArgs) -> Result<()> {
    let inputs = args.model.path().into_iter().chain(&args.placement.plan).chain(&args.requests_file);
    let inputs = inputs.map(PathBuf::as_path).chain(args.fleet.file());
    files::check(args.trace.as_deref(), inputs)?;
    let load = load(args)?;
    let model = open_metadata(args.model.path(), args.described, args.placement.rope_scaling)?;
    let needs = Needs {
        asked: args.parallel,
        context: Some(longest(&load).min(model.hyperparameters().context)),
        ..Needs::of(args.closed.unwrap_or(PARALLEL))
    };
    let fleet = fleet(&args.fleet)?;
    let (planner, _) = for_fleet_or_devices(&model, fleet.as_ref(), &args.devices, &args.placement, needs)?;
    let plan = &planner.plan()?;
    inform(&summary(plan));
    let (devices, links) = planner.facts();
    let mut spec = crate::simulation_spec(&model, plan, devices, links, &load)?;
    spec.network.lost_per_million = (args.network_loss * 1e4).round() as u32;
    spec.network.again_ns = RETRANSMISSION_NS;
    let report = ragtag_scheduler::sim::simulate(&spec).map_err(crate::Error::from)?;
    let result = SimSummary::new(&spec, report);
    let printed = match args.json {
        true => print_json(&json!({ "ragtag_simulation": 1, "plan": plan, "summary": result })),
        false => show(&as_table(plan, &result, out_width())),
    };
    let timeline = || Trace::simulated(plan, &result).to_chrome_json();
    printed.and(args.trace.iter().try_for_each(|path| write_file(path, timeline().as_bytes())))
}

fn load(args: &SimulateArgs) -> Result<Load> {
    if let Some(path) = &args.requests_file {
        return read(path);
    }
    let arrivals = match (args.rate, args.closed) {
        (Some(per_s), _) => Arrivals::Poisson { per_s },
        (None, Some(at_once)) => Arrivals::Closed { at_once },
        (None, None) => Arrivals::Together,
    };
    let drawn = DrawnLoad {
        requests: args.requests,
        arrivals,
        prompt_tokens: args.prompt_tokens,
        new_tokens: args.new_tokens,
        seed: args.seed,
    };
    Ok(drawn.draw().map_err(crate::Error::from)?)
}

/// Maximum size of a requests file in bytes. The file of the largest valid load is far smaller.
const MAX_BYTES: u64 = 1 << 28;

fn read(path: &Path) -> Result<Load> {
    let text = read_text(path, MAX_BYTES);
    let text = text.map_err(cannot_read(path))?;
    Load::from_text(&text).map_err(|cause| Error::RequestFile { path: path.into(), cause })
}

/// Returns the number of KV positions that the longest request needs. The last new token of a request needs
/// no position, because it is never an input.
fn longest(load: &Load) -> u32 {
    let positions = |request: &SimRequest| match request.want {
        Want::Generate { max_new_tokens, .. } => {
            request.prompt_tokens.saturating_add(max_new_tokens.saturating_sub(1))
        }
        Want::Logits => request.prompt_tokens,
    };
    load.requests.iter().map(positions).max().unwrap_or(1)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn time(us: f64) -> String {
    if us < 1e6 { format!("{:.2} ms", us / 1e3) } else { format!("{:.2} s", us / 1e6) }
}

/// Returns `figure`, or a dash if `count`, the number of its samples, is 0.
fn of(count: u64, figure: String) -> String {
    if count > 0 { figure } else { "–".into() }
}

pub(super) fn as_table(plan: &Plan, summary: &SimSummary, width: Option<u16>) -> String {
    let rate = |per_s: f64| of(summary.finished, format!("{per_s:.1}"));
    let mut text = format!(
        "{} requests in {}: {} requests/s, prefill {} tokens/s, decode {} tokens/s\n",
        summary.finished,
        of(summary.finished, time(summary.duration_us)),
        of(summary.finished, format!("{:.2}", summary.requests_per_s)),
        rate(summary.prefill_tokens_per_s),
        rate(summary.decode_tokens_per_s),
    );
    if summary.refused > 0 {
        text += &format!("{} more were refused: they do not fit the plan\n", summary.refused);
    }
    if summary.cut_short > 0 {
        let context = plan.context;
        text += &format!("{} of them were truncated at the context of {context}\n", summary.cut_short);
    }
    text += &format!(
        "requests waiting for KV cache: {:.1} on average, {} at most\n",
        summary.waiting_requests.mean, summary.waiting_requests.max
    );
    let (latencies, stages) = (latencies(summary, width), stages(plan, summary, width));
    format!("{text}\n{latencies}\n\n{stages}\n{}", links(summary, width))
}

fn latencies(summary: &SimSummary, width: Option<u16>) -> TextTable<'static> {
    let mut table = table(&["latency", ">mean", ">p50", ">p90", ">p99", ">max"], width);
    let rows: [(&str, &Percentiles); 3] = [
        ("first token", &summary.first_token_us),
        ("between tokens", &summary.between_tokens_us),
        ("whole request", &summary.request_us),
    ];
    for (name, times) in rows {
        let mut row = vec![name.to_string()];
        row.extend(
            [times.mean, times.p50, times.p90, times.p99, times.max].map(|us| of(times.count, time(us))),
        );
        table.add_row(row);
    }
    table
}

fn stages(plan: &Plan, summary: &SimSummary, width: Option<u16>) -> TextTable<'static> {
    let columns =
        [">stage", "device", "segments", ">busy", ">bubble", ">prefill", ">decode", ">queue", "+>max queue"];
    let mut table = table(&columns, width);
    let all = summary.stages.iter().chain(&summary.prefill_stage).zip(plan.all_stages());
    for (index, (stage, planned)) in all.enumerate() {
        let mean = |computed: &ragtag_scheduler::Computed| {
            let count = computed.micro_batches;
            of(count, time(computed.busy_ns as f64 / count as f64 / 1e3))
        };
        table.add_row([
            if index < summary.stages.len() { index.to_string() } else { "prefill".into() },
            stage.device.clone(),
            planned.segments.to_string(),
            percent(stage.utilisation),
            percent(stage.bubble),
            mean(&stage.prefill),
            mean(&stage.decode),
            format!("{:.2}", stage.queue.mean),
            stage.queue.max.to_string(),
        ]);
    }
    table
}

fn links(summary: &SimSummary, width: Option<u16>) -> String {
    if summary.links.is_empty() {
        return String::new();
    }
    let mut table = table(&["link", ">busy", ">transfers", ">bytes"], width);
    for link in &summary.links {
        let name = format!("{} -> {}", link.from, link.to);
        table.add_row([name, percent(link.utilisation), link.crossings.to_string(), bytes(link.bytes)]);
    }
    for link in &summary.shared_links {
        table.add_row([link.name.clone(), percent(link.utilisation), String::new(), String::new()]);
    }
    format!("\n{table}\n")
}
