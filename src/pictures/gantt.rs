//! Timelines of a pipeline, as data from which other modules draw Gantt charts.

use crate::Trace;
use ragtag_hal::QueueKind;
use ragtag_planner::plan::{Plan, PredictedTimes, PrefillStage};
use ragtag_scheduler::sim::SimSummary;
use ragtag_scheduler::{Span, SpanKind};
use std::collections::BTreeMap;

/// Number of prefill chunks that an estimated timeline or an excerpt shows.
const CHUNKS: usize = 6;
/// Number of decode steps that a timeline shows for each group of sequences.
const STEPS: usize = 3;
/// Maximum number of groups of sequences that a timeline shows.
const GROUPS: usize = 8;

/// A timeline. It records when each stage and each edge works on each micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Gantt {
    /// Title of the chart.
    pub title: String,
    /// Source of the times.
    pub source: GanttSource,
    /// Rows of the chart, from top to bottom.
    pub rows: Vec<GanttRow>,
    /// Spans of all rows, in any order.
    pub spans: Vec<GanttSpan>,
}

/// Source of a chart's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GanttSource {
    /// Estimated from a plan's predicted times. The estimate assumes that each stage and each edge processes
    /// one micro-batch at a time.
    Estimated,
    /// Simulated by the scheduler on a virtual clock.
    Simulated,
    /// Measured in a run.
    Measured,
}

/// A row of a timeline: a queue of a device, or an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GanttRow {
    /// Label of the device, or the labels of both ends of an edge. It is `host` for an estimated token
    /// return.
    pub device: String,
    /// Queue of the device, such as `compute`, or activity of the edge, such as `transfer`.
    pub lane: String,
}

/// A span of time in which a row works on a micro-batch or loads weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GanttSpan {
    /// Index of the span's row in [`Gantt::rows`].
    pub row: usize,
    /// Kind of work in the span.
    pub kind: GanttKind,
    /// Number of the micro-batch, or `None` if the span belongs to no micro-batch. Several decode steps of a
    /// group can have the same number.
    pub micro_batch: Option<u64>,
    /// Start time on the timeline, in microseconds.
    pub start_us: f64,
    /// End time on the timeline, in microseconds.
    pub end_us: f64,
}

/// Kind of work in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GanttKind {
    /// A stage computes a prefill chunk.
    Prefill,
    /// A stage computes a decode step.
    Decode,
    /// An edge or a queue transfers activations, or a stage verifies them.
    Crossing,
    /// The last stage copies logits to the host, and tokens return to the first stage.
    TokenReturn,
    /// A device loads weights.
    Weights,
}

impl Gantt {
    /// Estimates two timelines from a plan's predicted times. The first shows a burst of prefill chunks, the
    /// second the decode steps of all groups of sequences.
    ///
    /// The estimate assumes that every stage and every edge processes one micro-batch at a time, in order of
    /// arrival, and that there are no other delays. It is less precise than a simulation, but needs only the
    /// plan.
    pub fn estimated(plan: &Plan) -> Vec<Self> {
        let groups = usize::try_from(plan.decode_groups).unwrap_or(GROUPS).clamp(1, GROUPS);
        let mut charts = vec![Estimate::new(plan).prefill(), Estimate::new(plan).decode(groups)];
        charts.retain(|chart| chart.end_us() > 0.0);
        charts
    }

    /// Creates the timeline of a run from its trace. A computation with more than `decode_rows` rows counts
    /// as prefill. Pass the value of [`Plan::decode_rows`].
    pub fn of_trace(trace: &Trace, decode_rows: u32) -> Self {
        let lane = |span: &Span| (span.stage, span.kind == SpanKind::Read, span.queue.index());
        let mut used = BTreeMap::new();
        for span in trace.spans() {
            used.insert(lane(span), lane_name(span));
        }
        let device = |stage: u32| trace.devices().get(stage as usize).cloned().unwrap_or_default();
        let rows =
            used.iter().map(|(&(stage, ..), &lane)| GanttRow { device: device(stage), lane: lane.into() });
        let keys: Vec<_> = used.keys().copied().collect();
        let span = |span: &Span| {
            let row = keys.binary_search(&lane(span)).ok()?;
            Some(GanttSpan {
                row,
                kind: kind(span, decode_rows),
                micro_batch: span.micro_batch.map(|id| id.0),
                start_us: span.start_ns as f64 / 1e3,
                end_us: span.end_ns as f64 / 1e3,
            })
        };
        Self {
            title: "The run".into(),
            source: GanttSource::Measured,
            rows: rows.collect(),
            spans: trace.spans().iter().filter_map(span).collect(),
        }
    }

    /// Creates the timeline of a simulation. Distinguishes prefill and decode like [`Gantt::of_trace`].
    pub fn simulated(plan: &Plan, summary: &SimSummary) -> Self {
        let trace = Trace::simulated(plan, summary);
        let gantt = Self::of_trace(&trace, plan.decode_rows);
        Self { title: "The simulation".into(), source: GanttSource::Simulated, ..gantt }
    }

    /// Returns excerpts of a timeline that is too long for a page. One excerpt shows the first prefill
    /// chunks. The other shows the consecutive decode steps that keep the stages busiest. Omits an excerpt
    /// that would be empty.
    pub fn excerpts(&self) -> Vec<Self> {
        let prefill = self.computed(GanttKind::Prefill);
        let decode = self.computed(GanttKind::Decode);
        let densest = densest(&decode, GROUPS * STEPS);
        let parts = [
            ("The first prompt chunks", &prefill[..prefill.len().min(CHUNKS)]),
            ("Decode steps", &decode[densest..decode.len().min(densest + GROUPS * STEPS)]),
        ];
        let parts = parts.into_iter().filter(|(_, part)| !part.is_empty());
        parts.map(|(title, part)| self.only(title, part)).collect()
    }

    /// Returns the micro-batches that have computations of `kind`, in order of their first start.
    fn computed(&self, kind: GanttKind) -> Vec<Computed> {
        let mut known: BTreeMap<u64, Computed> = BTreeMap::new();
        for span in self.spans.iter().filter(|span| span.kind == kind) {
            let Some(id) = span.micro_batch else { continue };
            let GanttSpan { start_us, end_us, .. } = *span;
            let of = known.entry(id).or_insert(Computed { id, start_us, end_us, busy_us: 0.0 });
            (of.start_us, of.end_us) = (of.start_us.min(start_us), of.end_us.max(end_us));
            of.busy_us += end_us - start_us;
        }
        let mut computed: Vec<_> = known.into_values().collect();
        computed.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.id.cmp(&b.id)));
        computed
    }

    /// Returns a timeline with only the micro-batches in `of`. Renumbers the micro-batches from 0 and shifts
    /// their first start to time 0.
    fn only(&self, title: &str, of: &[Computed]) -> Self {
        let number = |span: &GanttSpan| of.iter().position(|one| Some(one.id) == span.micro_batch);
        let spans = self.spans.iter().filter_map(|span| Some((number(span)? as u64, span)));
        let start_us = spans.clone().map(|(_, span)| span.start_us).fold(f64::INFINITY, f64::min);
        let shifted = spans.map(|(number, span)| GanttSpan {
            micro_batch: Some(number),
            start_us: span.start_us - start_us,
            end_us: span.end_us - start_us,
            ..*span
        });
        let title = title.into();
        Self { title, source: self.source, rows: self.rows.clone(), spans: shifted.collect() }
    }

    /// Returns the end of the last span, in microseconds.
    pub fn end_us(&self) -> f64 {
        self.spans.iter().map(|span| span.end_us).filter(|us| us.is_finite()).fold(0.0, f64::max)
    }
}

/// Times at which the stages compute a micro-batch.
#[derive(Clone, Copy, Debug)]
struct Computed {
    id: u64,
    /// Start on the first stage that computes the micro-batch, in microseconds.
    start_us: f64,
    /// End on the last stage that computes the micro-batch, in microseconds.
    end_us: f64,
    /// Total busy time of all stages, in microseconds.
    busy_us: f64,
}

/// Returns the start index of the `count` consecutive micro-batches that keep the stages busiest. If several
/// such windows are about equally busy, returns the start of the one nearest to the middle, because it is
/// typical of the timeline.
fn densest(all: &[Computed], count: usize) -> usize {
    const SAME: f64 = 0.01;
    let density = |row: &[Computed]| {
        let start_us = row.iter().map(|one| one.start_us).fold(f64::INFINITY, f64::min);
        let end_us = row.iter().map(|one| one.end_us).fold(0.0, f64::max);
        row.iter().map(|one| one.busy_us).sum::<f64>() / (end_us - start_us)
    };
    let densities: Vec<f64> = all.windows(count.min(all.len()).max(1)).map(density).collect();
    let most = densities.iter().copied().fold(0.0, f64::max);
    let middle = densities.len().saturating_sub(1) / 2;
    let dense = (0..densities.len()).filter(|at| densities[*at] >= most * (1.0 - SAME));
    dense.min_by_key(|at| at.abs_diff(middle)).unwrap_or(0)
}

fn lane_name(span: &Span) -> &'static str {
    match span.queue {
        _ if span.kind == SpanKind::Read => "file",
        QueueKind::Compute => "compute",
        QueueKind::Upload => "in",
        QueueKind::Download => "out",
    }
}

fn kind(span: &Span, decode_rows: u32) -> GanttKind {
    match span.kind {
        SpanKind::Compute if span.rows > decode_rows => GanttKind::Prefill,
        SpanKind::Compute => GanttKind::Decode,
        SpanKind::Upload | SpanKind::Download | SpanKind::KeysAndValues | SpanKind::Checksum => {
            GanttKind::Crossing
        }
        SpanKind::Logits => GanttKind::TokenReturn,
        SpanKind::Read | SpanKind::Weights => GanttKind::Weights,
    }
}

/// Estimates the timeline of a pipeline whose stages and edges each process one micro-batch at a time.
struct Estimate<'a> {
    plan: &'a Plan,
    /// Time at which each stage and each edge becomes free, in microseconds. The entries are in pipeline
    /// order: stage, edge, stage and so on, with the token return at the end.
    free_us: Vec<f64>,
    spans: Vec<GanttSpan>,
}

impl<'a> Estimate<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, free_us: vec![0.0; 2 * plan.stages.len()], spans: Vec::new() }
    }

    /// Estimates a burst of prefill chunks. All chunks are available at the start.
    fn prefill(mut self) -> Gantt {
        for chunk in 0..CHUNKS {
            self.pass(chunk, GanttKind::Prefill, 0.0);
        }
        self.chart(format!("A burst of {CHUNKS} prompt chunks"))
    }

    /// Estimates decode steps. The micro-batch number of each span is the number of its group. The next step
    /// of a group starts when the group's tokens have returned to the first stage.
    fn decode(mut self, groups: usize) -> Gantt {
        let mut ready_us = vec![0.0; groups];
        let back = self.free_us.len().saturating_sub(1);
        for _ in 0..STEPS {
            for (group, ready_us) in ready_us.iter_mut().enumerate() {
                let out_us = self.pass(group, GanttKind::Decode, *ready_us);
                let return_us = self.plan.token_return.decode_us;
                *ready_us = self.occupy(back, GanttKind::TokenReturn, group, out_us, return_us);
            }
        }
        let noun = if groups == 1 { "group" } else { "groups" };
        self.chart(format!("{STEPS} decode steps of {groups} {noun} of sequences"))
    }

    /// Passes a micro-batch through all stages, or a prefill chunk through the prefill stage if there is one.
    /// Returns the time at which it leaves the last stage, in microseconds.
    fn pass(&mut self, number: usize, kind: GanttKind, start_us: f64) -> f64 {
        let plan = self.plan;
        if let Some(PrefillStage { stage, .. }) =
            plan.prefill_stage.as_ref().filter(|_| kind == GanttKind::Prefill)
        {
            let row = plan.stages.iter().position(|other| other.device == stage.device).unwrap_or(0);
            return self.occupy(2 * row, kind, number, start_us, stage.predicted.prefill_us);
        }
        let of = |times: PredictedTimes| match kind {
            GanttKind::Prefill => times.prefill_us,
            _ => times.decode_us,
        };
        let mut at_us = start_us;
        for (at, stage) in plan.stages.iter().enumerate() {
            at_us = self.occupy(2 * at, kind, number, at_us, of(stage.predicted));
            if let Some(edge) = plan.edges.get(at).filter(|_| at + 1 < plan.stages.len()) {
                at_us = self.occupy(2 * at + 1, GanttKind::Crossing, number, at_us, of(edge.predicted));
            }
        }
        at_us
    }

    /// Adds a span to `row`. The span starts as soon as the micro-batch is ready and the row is free. Returns
    /// its end time in microseconds.
    fn occupy(&mut self, row: usize, kind: GanttKind, number: usize, ready_us: f64, takes_us: f64) -> f64 {
        let Some(free_us) = self.free_us.get_mut(row) else { return ready_us };
        let start_us = free_us.max(ready_us);
        let end_us = start_us + if takes_us.is_finite() { takes_us.max(0.0) } else { 0.0 };
        *free_us = end_us;
        if end_us > start_us {
            self.spans.push(GanttSpan { row, kind, micro_batch: Some(number as u64), start_us, end_us });
        }
        end_us
    }

    fn chart(self, title: String) -> Gantt {
        let stages = &self.plan.stages;
        let mut rows = Vec::new();
        for (at, stage) in stages.iter().enumerate() {
            rows.push(GanttRow { device: stage.device.clone(), lane: "compute".into() });
            rows.push(match stages.get(at + 1) {
                Some(next) => {
                    GanttRow { device: edge_name(&stage.device, &next.device), lane: "transfer".into() }
                }
                None => GanttRow { device: "host".into(), lane: "token return".into() },
            });
        }
        Gantt { title, source: GanttSource::Estimated, rows, spans: self.spans }
    }
}

/// Returns the name of the edge between two devices, such as `cuda:0 → cpu:0`.
pub(super) fn edge_name(from: &str, to: &str) -> String {
    format!("{from} → {to}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::core::MicroBatchId;

    fn span(stage: u32, queue: QueueKind, kind: SpanKind, id: u64, rows: u32, times: [u64; 2]) -> Span {
        let [start_ns, end_ns] = times;
        Span {
            stage,
            queue,
            kind,
            segments: 0..1,
            micro_batch: Some(MicroBatchId(id)),
            rows,
            start_ns,
            end_ns,
            route: None,
        }
    }

    #[test]
    fn traces_chart_their_queues_and_excerpts_start_at_0() {
        use QueueKind::{Compute, Download, Upload};
        let of_weights = |kind| Span { micro_batch: None, ..span(0, Upload, kind, 0, 0, [0, 900_000]) };
        let spans = vec![
            of_weights(SpanKind::Weights),
            of_weights(SpanKind::Read),
            span(1, Compute, SpanKind::Compute, 7, 64, [1_003_000, 1_005_000]),
            span(0, Compute, SpanKind::Compute, 7, 64, [1_000_000, 1_002_000]),
            span(0, Download, SpanKind::Download, 7, 0, [1_002_000, 1_003_000]),
            span(0, Compute, SpanKind::Compute, 9, 2, [2_000_000, 2_000_500]),
            span(1, Download, SpanKind::Logits, 9, 0, [2_001_000, 2_001_500]),
        ];
        let trace = Trace::of(spans, vec!["cpu:0".into(), "cuda:0".into()]);
        let gantt = Gantt::of_trace(&trace, 2);
        let rows: Vec<_> = gantt.rows.iter().map(|r| format!("{} {}", r.device, r.lane)).collect();
        assert_eq!(
            rows,
            ["cpu:0 compute", "cpu:0 in", "cpu:0 out", "cpu:0 file", "cuda:0 compute", "cuda:0 out"]
        );
        assert_eq!((gantt.source, gantt.end_us()), (GanttSource::Measured, 2001.5));
        let kinds: Vec<_> = gantt.spans.iter().map(|s| s.kind).collect();
        use GanttKind::{Crossing, Decode, Prefill, TokenReturn, Weights};
        assert_eq!(kinds, [Weights, Weights, Prefill, Prefill, Crossing, Decode, TokenReturn]);

        let excerpts = gantt.excerpts();
        let shown = |at: usize| -> Vec<_> {
            excerpts[at].spans.iter().map(|s| (s.row, s.micro_batch, s.start_us, s.end_us)).collect()
        };
        assert_eq!(excerpts.len(), 2);
        assert_eq!(shown(0), [(4, Some(0), 3.0, 5.0), (0, Some(0), 0.0, 2.0), (2, Some(0), 2.0, 3.0)]);
        assert_eq!(shown(1), [(0, Some(0), 0.0, 0.5), (5, Some(0), 1.0, 1.5)]);
    }

    /// Returns the decode excerpt of a timeline with `steps` decode steps on two stages. Each step takes 5 µs
    /// per stage. The next step starts 10 µs later, or 1000 µs later if `sparse` returns true for the step.
    fn excerpt(steps: u64, sparse: impl Fn(u64) -> bool) -> Gantt {
        let mut at_ns = 0;
        let mut spans = Vec::new();
        for id in 0..steps {
            for stage in 0..2 {
                let start_ns = at_ns + 5000 * u64::from(stage);
                let times = [start_ns, start_ns + 5000];
                spans.push(span(stage, QueueKind::Compute, SpanKind::Compute, id, 1, times));
            }
            at_ns += if sparse(id) { 1_000_000 } else { 10_000 };
        }
        let devices = vec!["cpu:0".into(), "cpu:1".into()];
        let mut excerpts = Gantt::of_trace(&Trace::of(spans, devices), 1).excerpts();
        assert_eq!(excerpts.len(), 1);
        excerpts.remove(0)
    }

    #[test]
    fn decode_excerpts_show_the_busiest_steps() {
        let shown = GROUPS * STEPS;
        let dense_us = 10.0 * shown as f64;
        // All steps are equally dense. There are many, exactly enough or too few for an excerpt.
        for (steps, expected) in [(1000, shown), (shown as u64, shown), (3, 3)] {
            let excerpt = excerpt(steps, |_| false);
            assert_eq!(excerpt.spans.len(), 2 * expected);
            assert_eq!((excerpt.spans[0].start_us, excerpt.end_us()), (0.0, 10.0 * expected as f64));
        }
        // Only some steps near the start or near the end are dense.
        for first in [3, 900] {
            let excerpt = excerpt(1000, |id| !(first..first + 60).contains(&id));
            assert_eq!((excerpt.spans.len(), excerpt.end_us()), (2 * shown, dense_us));
        }
        // The dense steps are too few for an excerpt, so it contains all of them and some sparse steps.
        let excerpt = excerpt(1000, |id| !(700..710).contains(&id));
        assert!(excerpt.end_us() < 1000.0 * (shown - 9) as f64 + dense_us, "{}", excerpt.end_us());
    }
}
