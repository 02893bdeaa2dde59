//! Predicted against measured, as the command shows it; and `--replan`.

use super::args::CompareArgs;
use super::files::write_file;
use super::output::{inform, note, table};
use super::plan::Placed;
use crate::calibrate::Calibration;
use crate::engine::{Engine, EngineOptions};
use crate::error::Result;
use crate::model::Model;
use crate::pictures::{self, Gantt, Report};
use ragtag_planner::Place;
use ragtag_planner::wording::{self, Quantity};
use ragtag_scheduler::compare::Comparison;
use serde::Serialize;

/// What `--replan` came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    /// The split that was measured.
    from: String,
    /// The split that is used from then on.
    to: String,
    /// By how much the first takes longer, as a share, as far as the measured facts tell.
    predicted_gain: f64,
}

/// After a first run: plans again from what the engine measured. If that gives a better plan, the engine is started with it,
/// and `placed` is what it runs. One line on standard error says what was decided.
pub(super) fn replan(
    placed: &mut Placed,
    model: &Model,
    engine: Engine,
    options: EngineOptions,
) -> Result<(Engine, Option<Change>)> {
    let Some(replanned) = placed.planner.replan(&engine)? else {
        inform(
            "replan: measured, and no other plan is better by more than 3 % and what measurements vary by",
        );
        return Ok((engine, None));
    };
    let change = Change {
        from: engine.plan().split().to_string(),
        to: replanned.plan.split().to_string(),
        predicted_gain: replanned.gain,
    };
    let faster = wording::speed(1.0 / (1.0 + replanned.gain));
    inform(&format!("replan: {} -> {}, predicted {faster} as measured", change.from, change.to));
    // Its memory is needed.
    drop(engine.shutdown());
    (placed.planner, placed.plan, placed.file) = (replanned.planner, replanned.plan, None);
    Ok((placed.start(model, options)?, Some(change)))
}

/// Has devices timed again at the next use that ran at another speed than their profiles say, and says so.
pub(super) fn note_contradictions(placed: &Placed, comparison: &Comparison) {
    for device in Calibration::contradict(placed.planner.facts().0, comparison, None) {
        note(&format!(
            "calibration: {device} ran at another speed than calibrated; the next command times it again"
        ));
    }
}

/// The comparison as a table, with what failed below it.
pub(super) fn as_table(comparison: &Comparison) -> String {
    let mut table = table(&["part", "micro-batches", ">number", ">predicted", ">measured", ">deviation"]);
    for part in &comparison.parts {
        let what = match part.place {
            Place::Stage => format!("stage {} on {}", part.index, part.device),
            Place::TokenReturn => "return of tokens".into(),
            _ => format!("{} -> {}", part.device, part.to.as_deref().unwrap_or("")),
        };
        let size = match part.place {
            Place::Stage => format!("{}, {:.1} rows", part.phase, part.rows),
            _ => format!("{}, {:.1} KiB", part.phase, part.bytes / 1024.0),
        };
        let number = part.micro_batches.to_string();
        let (predicted, measured) = (time(part.predicted_us), time(part.measured_us));
        table.add_row([
            what,
            size,
            number,
            predicted,
            measured,
            wording::deviation(Quantity::Time, part.deviation),
        ]);
    }
    for rate in &comparison.rates {
        let speed = |tokens_per_s: f64| format!("{tokens_per_s:.1} tokens/s");
        let (predicted, measured) = (speed(rate.predicted_tokens_per_s), speed(rate.measured_tokens_per_s));
        let what = format!("all of it, {}", rate.what);
        table.add_row([
            what,
            rate.phase.to_string(),
            String::new(),
            predicted,
            measured,
            wording::deviation(Quantity::Rate, rate.deviation),
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

/// Writes the page that was asked for. The engine has run with a trace.
pub(super) fn write_page(args: &CompareArgs, engine: &Engine, comparison: &Comparison) -> Result<()> {
    let Some(path) = &args.html else { return Ok(()) };
    let mut report = Report::new(engine.plan().clone());
    report.measured = Some(comparison.clone());
    report.timelines.extend(Gantt::of_trace(&engine.trace(), engine.plan().decode_rows).excerpts());
    write_file(path, pictures::html(&report).as_bytes())
}
