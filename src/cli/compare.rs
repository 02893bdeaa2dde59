//! Prints the comparison of predicted with measured times as a table or an HTML page, and implements
//! `--replan`.

use super::args::CompareArgs;
use super::error::Result;
use super::files::write_file;
use super::output::{inform, note, table};
use super::start::placed::Placed;
use crate::pictures::{self, Gantt, Report};
use crate::{Calibration, Engine, EngineOptions, Meter, Model};
use ragtag_planner::wording;
use ragtag_planner::{Place, Plan};
use ragtag_scheduler::compare::Comparison;
use serde::Serialize;

/// Change of the placement by `--replan`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    /// Split of the run whose times were measured.
    from: String,
    /// Split of the new plan.
    to: String,
    /// Ratio of the predicted time with the old split to the predicted time with the new split, minus 1. Both
    /// predictions use the measurements.
    predicted_gain: f64,
}

/// Makes a new plan from the measurements of a first run. If the new plan is better, restarts the engine with
/// it and updates `placed`. Prints the decision to standard error.
pub(super) fn replan(
    placed: &mut Placed,
    model: &Model,
    engine: Engine,
    options: EngineOptions,
) -> Result<(Engine, Option<Change>)> {
    let Some(replanned) = placed.planner.replan(&engine)? else {
        inform(
            "replan: keeping the plan; no other is predicted to be faster by more than 3 % and the measurement noise",
        );
        return Ok((engine, None));
    };
    let change = Change {
        from: engine.plan().split().to_string(),
        to: replanned.plan.split().to_string(),
        predicted_gain: replanned.gain,
    };
    let faster = wording::speed(1.0 / (1.0 + replanned.gain));
    inform(&format!("replan: {} -> {}, predicted {faster} with the measured speeds", change.from, change.to));
    // Frees the memory of the old engine for the new engine.
    drop(engine.shutdown());
    (placed.planner, placed.plan, placed.file) = (replanned.planner, replanned.plan, None);
    Ok((placed.start(model, options)?, Some(change)))
}

/// Corrects the cached profiles that the measured times contradict, and prints a note for each device concerned.
/// `meter` was started with the measured run.
pub(super) fn mend_profiles(placed: &Placed, plan: &Plan, comparison: &Comparison, meter: &Meter) {
    for device in Calibration::mend(placed.planner.facts().0, plan, comparison, meter.lost(), None) {
        note(&format!(
            "calibration: {device} did not run at its calibrated speed; later commands use the speed of this run"
        ));
    }
}

/// Formats a comparison as a table that fits into `width`, followed by its findings.
pub(super) fn as_table(comparison: &Comparison, width: Option<u16>) -> String {
    let columns = ["part", "micro-batches", "+>count", ">predicted", ">measured", ">deviation"];
    let mut table = table(&columns, width);
    for part in &comparison.parts {
        let what = match part.place {
            Place::Stage => part.stage_name(),
            Place::TokenReturn => "token return".into(),
            _ => format!("{} -> {}", part.device, part.to.as_deref().unwrap_or("")),
        };
        let size = match part.place {
            Place::Stage => format!("{}, {:.1} rows", part.phase, part.rows),
            _ => format!("{}, {:.1} KiB", part.phase, part.bytes / 1024.0),
        };
        let number = part.micro_batches.to_string();
        let (predicted, measured) = (time(part.predicted_us), time(part.measured_us));
        table.add_row([what, size, number, predicted, measured, wording::deviation(part.deviation)]);
    }
    for rate in &comparison.rates {
        let speed = |tokens_per_s: f64| format!("{tokens_per_s:.1} tokens/s");
        let (predicted, measured) = (speed(rate.predicted_tokens_per_s), speed(rate.measured_tokens_per_s));
        let what = format!("total, {}", rate.what);
        table.add_row([
            what,
            rate.phase.to_string(),
            String::new(),
            predicted,
            measured,
            wording::deviation(rate.deviation),
        ]);
    }
    let mut text = format!("{table}\n");
    for finding in comparison.findings() {
        text.push_str(&format!("- {finding}\n"));
    }
    text
}

fn time(us: f64) -> String {
    if us < 1000.0 { format!("{us:.1} µs") } else { format!("{:.2} ms", us / 1e3) }
}

/// Writes the HTML page of a comparison if `--html` is set. The engine must have recorded a trace.
pub(super) fn write_page(args: &CompareArgs, engine: &Engine, comparison: &Comparison) -> Result<()> {
    let Some(path) = &args.html else { return Ok(()) };
    let mut report = Report::new(Plan::clone(&engine.plan()));
    report.measured = Some(comparison.clone());
    report.timelines.extend(Gantt::of_trace(&engine.trace(), engine.plan().decode_rows).excerpts());
    write_file(path, pictures::html(&report).as_bytes())
}
