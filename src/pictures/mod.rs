//! Pictures of plans and runs: an HTML page, an SVG drawing, a Graphviz graph, and bars for the terminal.
//!
//! The input of pictures of plans is a [`Report`], which is plain data. `charts.rs` turns a report into
//! charts. `html.rs` draws these charts at the width of the screen. `svg.rs` draws them on a sheet of fixed
//! size.
//! `links.rs` draws the links of a [`LinkReport`](crate::LinkReport).

mod chart;
mod charts;
mod dot;
mod gantt;
mod html;
mod links;
mod load;
mod svg;
mod terminal;
mod words;

pub use dot::dot;
pub use gantt::{Gantt, GanttKind, GanttRow, GanttSource, GanttSpan};
pub use html::html;
pub use links::links;
pub use svg::svg;
pub use terminal::{BarStyle, bars};

use ragtag_planner::plan::Plan;
use ragtag_scheduler::compare::Comparison;

/// Data from which pictures of a plan or a run are drawn.
///
/// ```
/// # fn main() -> ragtag::Result<()> {
/// use ragtag::pictures::{self, Report};
///
/// let mut options = ragtag::DeviceOptions::default();
/// options.cpu_devices = 2;
/// let devices = ragtag::Devices::probe(&options)?;
/// let plan = ragtag::Planner::new(&ragtag::Model::bundled()?).devices(&devices).plan()?;
/// let page = pictures::html(&Report::new(plan));
/// assert!(page.starts_with("<!DOCTYPE html>"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Plan that the pictures show.
    pub plan: Plan,
    /// Timelines of the pipeline: estimated, simulated or measured.
    pub timelines: Vec<Gantt>,
    /// Comparison of predicted with measured times, if the plan has run.
    pub measured: Option<Comparison>,
    /// Baseline placements for comparison.
    pub baselines: Vec<Baseline>,
}

impl Report {
    /// Creates a report on a plan that has not run. Estimates its timelines from the plan's predictions.
    pub fn new(plan: Plan) -> Self {
        let timelines = Gantt::estimated(&plan);
        Self { plan, timelines, measured: None, baselines: Vec::new() }
    }

    /// Returns a copy in which all control characters are replaced, because names from files may contain
    /// them.
    fn printable(&self) -> Self {
        let mut report = self.clone();
        for text in report.texts() {
            *text = words::printable(text);
        }
        report
    }

    /// Returns all strings in the report that may come from files or drivers.
    fn texts(&mut self) -> Vec<&mut String> {
        let Self { plan, timelines, measured, baselines } = self;
        let explanation = &mut plan.explanation;
        let mut texts = vec![&mut plan.model.name, &mut plan.model.digest];
        texts.extend(plan.stages.iter_mut().map(|stage| &mut stage.device));
        texts.extend(plan.prefill_stage.iter_mut().map(|prefill| &mut prefill.stage.device));
        texts.extend(plan.reasons.iter_mut());
        for left in &mut explanation.left_out {
            texts.push(&mut left.device);
            texts.extend(left.best_with.iter_mut().flat_map(|a| [&mut a.split, &mut a.why]));
        }
        texts.extend(explanation.alternatives.iter_mut().flat_map(|a| [&mut a.split, &mut a.why]));
        texts.extend(explanation.bindings.iter_mut().flat_map(|b| [&mut b.of, &mut b.more]));
        if let Some(Comparison { parts, rates, .. }) = measured {
            for part in parts {
                texts.push(&mut part.device);
                texts.extend([&mut part.to, &mut part.finding].into_iter().flatten());
            }
            for rate in rates {
                texts.push(&mut rate.what);
                texts.extend(&mut rate.finding);
            }
        }
        for gantt in timelines {
            texts.push(&mut gantt.title);
            texts.extend(gantt.rows.iter_mut().flat_map(|row| [&mut row.device, &mut row.lane]));
        }
        texts.extend(baselines.iter_mut().flat_map(|b| [&mut b.name, &mut b.split]));
        texts
    }
}

/// Speed of a pipeline. `None` means that a rate is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Decode speed of all sequences together, in tokens per second.
    pub decode_tokens_per_s: Option<f64>,
    /// Prefill speed, in tokens per second.
    pub prefill_tokens_per_s: Option<f64>,
}

/// A baseline placement, such as `even layers`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Name of the baseline.
    pub name: String,
    /// Placement in the syntax of `--split`.
    pub split: String,
    /// Predicted speed of the baseline.
    pub predicted: Rates,
    /// Measured speed of the baseline, if it has run.
    pub measured: Rates,
}
