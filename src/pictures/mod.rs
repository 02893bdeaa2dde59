//! Pictures of plans and runs: a page, a drawing, a graph for Graphviz, and bars for the terminal.
//!
//! All are made from a [`Report`], which is plain data. `charts.rs` makes charts of it, and `html.rs` and `svg.rs` draw the very
//! same charts, one as wide as its reader's screen, the other on a fixed sheet.
//!
//! This module must not know devices, files or the command line. It decides nothing: what a report does not hold, no
//! picture shows.

mod chart;
mod charts;
mod dot;
mod gantt;
mod html;
mod load;
mod svg;
mod terminal;
mod words;

pub use dot::dot;
pub use gantt::{Gantt, GanttKind, GanttRow, GanttSource, GanttSpan};
pub use html::html;
pub use svg::svg;
pub use terminal::{BarStyle, bars};

use ragtag_planner::plan::Plan;
use ragtag_scheduler::compare::Comparison;

/// What pictures are made of.
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
    /// The plan.
    pub plan: Plan,
    /// When each part of the pipeline works: estimated, simulated or measured.
    pub timelines: Vec<Gantt>,
    /// What a run took, beside what is predicted of the micro-batches that ran.
    pub measured: Option<Comparison>,
    /// Other ways to place the model.
    pub baselines: Vec<Baseline>,
}

impl Report {
    /// A plan that has not run yet, with timelines that are estimated from what it predicts of stages and edges.
    pub fn new(plan: Plan) -> Self {
        let timelines = Gantt::estimated(&plan);
        Self { plan, timelines, measured: None, baselines: Vec::new() }
    }

    /// The same with every text fit to be shown: names come from files, and control characters have no place in a page.
    fn printable(&self) -> Self {
        let mut report = self.clone();
        for text in report.texts() {
            *text = words::printable(text);
        }
        report
    }

    /// All texts that come from elsewhere.
    fn texts(&mut self) -> Vec<&mut String> {
        let Self { plan, timelines, measured, baselines } = self;
        let explanation = &mut plan.explanation;
        let mut texts = vec![&mut plan.model.name, &mut plan.model.digest];
        texts.extend(plan.stages.iter_mut().map(|stage| &mut stage.device));
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

/// How fast a pipeline is; `None` for what is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Tokens per second in decode, of all sequences together.
    pub decode_tokens_per_s: Option<f64>,
    /// Tokens per second in prefill.
    pub prefill_tokens_per_s: Option<f64>,
}

/// Another way to place the model, as `even layers`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Its name.
    pub name: String,
    /// Its placement, as users write it.
    pub split: String,
    /// What the cost model expects.
    pub predicted: Rates,
    /// What was measured.
    pub measured: Rates,
}
