//! Who works on which micro-batch when: the data of a Gantt chart, whoever it comes from.
//!
//! This module must not know how it is drawn.

use crate::trace::Trace;
use ragtag_hal::QueueKind;
use ragtag_scheduler::plan::{Plan, PredictedTimes};
use ragtag_scheduler::sim::SimSummary;
use ragtag_scheduler::{Span, SpanKind};
use std::collections::BTreeMap;

/// Prefill chunks of an estimated or shown burst.
const CHUNKS: usize = 6;
/// Decode steps that are shown of each group of sequences.
const STEPS: usize = 3;
/// Groups of sequences of which steps are shown.
const GROUPS: usize = 8;

/// Who works on which micro-batch when.
#[derive(Clone, Debug, PartialEq)]
pub struct Gantt {
    /// What is shown.
    pub title: String,
    /// Where the times come from.
    pub source: GanttSource,
    /// What works, from top to bottom.
    pub rows: Vec<GanttRow>,
    /// What it did, in any order.
    pub spans: Vec<GanttSpan>,
}

/// Where the times of a chart come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GanttSource {
    /// Computed from a plan's predicted times, as if each stage and each edge worked on one micro-batch after the other.
    Estimated,
    /// The simulator's.
    Simulated,
    /// A run's.
    Measured,
}

/// Something that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GanttRow {
    /// Label of the device, or of the two ends of an edge.
    pub device: String,
    /// What of it: `compute`, `crossing` …
    pub lane: String,
}

/// Something that was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GanttSpan {
    /// Index of the row.
    pub row: usize,
    /// What.
    pub kind: GanttKind,
    /// Number of the micro-batch, if it was for one. Those of different steps of a group may have one number.
    pub micro_batch: Option<u64>,
    /// Start, in microseconds.
    pub start_us: f64,
    /// End, in microseconds.
    pub end_us: f64,
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GanttKind {
    /// A stage computes a prefill chunk.
    Prefill,
    /// A stage computes a decode step.
    Decode,
    /// An activation crosses.
    Crossing,
    /// Logits leave, tokens return.
    TokenReturn,
    /// Weights arrive.
    Weights,
}

impl Gantt {
    /// A burst of prefill chunks, and decode steps of all groups of sequences, as far as a plan's predicted times tell.
    ///
    /// Every stage and every edge is taken to work on one micro-batch after the other, in the order of their arrival, and
    /// nothing else to take time: less than a simulation knows, but it needs nothing but the plan.
    pub fn estimated(plan: &Plan) -> Vec<Self> {
        let groups = usize::try_from(plan.decode_groups).unwrap_or(GROUPS).clamp(1, GROUPS);
        let mut charts = vec![Estimate::new(plan).prefill(), Estimate::new(plan).decode(groups)];
        charts.retain(|chart| chart.end_us() > 0.0);
        charts
    }

    /// What a run did. A computation of more rows than the plan's decode micro-batches have ([`Plan::decode_rows`]) counts
    /// as prefill.
    pub fn of_trace(trace: &Trace, decode_rows: u32) -> Self {
        let mut used = BTreeMap::new();
        for span in trace.spans() {
            used.insert((span.stage, span.queue.index()), span.queue);
        }
        let device = |stage: u32| trace.devices().get(stage as usize).cloned().unwrap_or_default();
        let rows = used
            .iter()
            .map(|(&(stage, _), queue)| GanttRow { device: device(stage), lane: lane_name(*queue).into() });
        let keys: Vec<_> = used.keys().copied().collect();
        let span = |span: &Span| {
            let row = keys.binary_search(&(span.stage, span.queue.index())).ok()?;
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

    /// What a plan did in simulation; kinds as in [`Gantt::of_trace`].
    pub fn simulated(plan: &Plan, summary: &SimSummary) -> Self {
        let trace = Trace::simulated(plan, summary);
        let gantt = Self::of_trace(&trace, plan.decode_rows);
        Self { title: "The simulation".into(), source: GanttSource::Simulated, ..gantt }
    }

    /// Two parts of a long timeline that fit on a page: the first prefill chunks, and some decode steps from its middle.
    pub fn excerpts(&self) -> Vec<Self> {
        let prefill = self.first_of(GanttKind::Prefill);
        let decode = self.first_of(GanttKind::Decode);
        let middle = decode.len().saturating_sub(GROUPS * STEPS) / 2;
        let parts = [
            ("The first prompt chunks", prefill.iter().copied().take(CHUNKS).collect::<Vec<_>>()),
            ("Decode steps", decode.iter().copied().skip(middle).take(GROUPS * STEPS).collect()),
        ];
        let parts = parts.into_iter().filter(|(_, ids)| !ids.is_empty());
        parts.map(|(title, ids)| self.only(title, &ids)).collect()
    }

    /// The micro-batches that were computed as this kind, in the order of their first start.
    fn first_of(&self, kind: GanttKind) -> Vec<u64> {
        let mut starts: BTreeMap<u64, f64> = BTreeMap::new();
        for span in self.spans.iter().filter(|span| span.kind == kind) {
            if let Some(id) = span.micro_batch {
                starts.entry(id).and_modify(|at| *at = at.min(span.start_us)).or_insert(span.start_us);
            }
        }
        let mut ids: Vec<_> = starts.into_iter().collect();
        ids.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        ids.into_iter().map(|(id, _)| id).collect()
    }

    /// The spans of these micro-batches, from time 0 on, numbered in their order.
    fn only(&self, title: &str, ids: &[u64]) -> Self {
        let number = |span: &GanttSpan| ids.iter().position(|id| Some(*id) == span.micro_batch);
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

    /// When the last span ends, in microseconds.
    pub fn end_us(&self) -> f64 {
        self.spans.iter().map(|span| span.end_us).filter(|us| us.is_finite()).fold(0.0, f64::max)
    }
}

fn lane_name(queue: QueueKind) -> &'static str {
    match queue {
        QueueKind::Compute => "compute",
        QueueKind::Upload => "in",
        QueueKind::Download => "out",
    }
}

fn kind(span: &Span, decode_rows: u32) -> GanttKind {
    match span.kind {
        SpanKind::Compute if span.rows > decode_rows => GanttKind::Prefill,
        SpanKind::Compute => GanttKind::Decode,
        SpanKind::Upload | SpanKind::Download => GanttKind::Crossing,
        SpanKind::Logits => GanttKind::TokenReturn,
        SpanKind::Weights => GanttKind::Weights,
    }
}

/// A pipeline whose parts work on one micro-batch after the other.
struct Estimate<'a> {
    plan: &'a Plan,
    /// When each part has done what it has: stage, edge, stage …, and the way back.
    free_us: Vec<f64>,
    spans: Vec<GanttSpan>,
}

impl<'a> Estimate<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, free_us: vec![0.0; 2 * plan.stages.len()], spans: Vec::new() }
    }

    /// Prefill chunks that are there from the start.
    fn prefill(mut self) -> Gantt {
        for chunk in 0..CHUNKS {
            self.pass(chunk, GanttKind::Prefill, 0.0);
        }
        self.chart(format!("A burst of {CHUNKS} prompt chunks"))
    }

    /// Decode steps, numbered by their groups: the next one of a group starts when its tokens have returned.
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

    /// A micro-batch goes through all stages; when it is through.
    fn pass(&mut self, number: usize, kind: GanttKind, start_us: f64) -> f64 {
        let plan = self.plan;
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

    /// A part works on a micro-batch as soon as both are free; when it has done so.
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
                    GanttRow { device: edge_name(&stage.device, &next.device), lane: "crossing".into() }
                }
                None => GanttRow { device: "host".into(), lane: "tokens return".into() },
            });
        }
        Gantt { title, source: GanttSource::Estimated, rows, spans: self.spans }
    }
}

/// The two ends of an edge.
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
        }
    }

    #[test]
    fn a_trace_becomes_a_chart_of_its_queues_and_excerpts_start_at_nothing() {
        use QueueKind::{Compute, Download, Upload};
        let weights = Span { micro_batch: None, ..span(0, Upload, SpanKind::Weights, 0, 0, [0, 900_000]) };
        let spans = vec![
            weights,
            span(1, Compute, SpanKind::Compute, 7, 64, [1_003_000, 1_005_000]),
            span(0, Compute, SpanKind::Compute, 7, 64, [1_000_000, 1_002_000]),
            span(0, Download, SpanKind::Download, 7, 0, [1_002_000, 1_003_000]),
            span(0, Compute, SpanKind::Compute, 9, 2, [2_000_000, 2_000_500]),
            span(1, Download, SpanKind::Logits, 9, 0, [2_001_000, 2_001_500]),
        ];
        let trace = Trace::of(spans, vec!["cpu:0".into(), "cuda:0".into()]);
        let gantt = Gantt::of_trace(&trace, 2);
        let rows: Vec<_> = gantt.rows.iter().map(|r| format!("{} {}", r.device, r.lane)).collect();
        assert_eq!(rows, ["cpu:0 compute", "cpu:0 in", "cpu:0 out", "cuda:0 compute", "cuda:0 out"]);
        assert_eq!((gantt.source, gantt.end_us()), (GanttSource::Measured, 2001.5));
        let kinds: Vec<_> = gantt.spans.iter().map(|s| s.kind).collect();
        use GanttKind::{Crossing, Decode, Prefill, TokenReturn, Weights};
        assert_eq!(kinds, [Weights, Prefill, Prefill, Crossing, Decode, TokenReturn]);

        let excerpts = gantt.excerpts();
        let shown = |at: usize| -> Vec<_> {
            excerpts[at].spans.iter().map(|s| (s.row, s.micro_batch, s.start_us, s.end_us)).collect()
        };
        assert_eq!(excerpts.len(), 2);
        assert_eq!(shown(0), [(3, Some(0), 3.0, 5.0), (0, Some(0), 0.0, 2.0), (2, Some(0), 2.0, 3.0)]);
        assert_eq!(shown(1), [(0, Some(0), 0.0, 0.5), (4, Some(0), 1.0, 1.5)]);
    }

    #[test]
    fn excerpts_of_decode_are_from_the_middle() {
        let spans =
            (0..1000).map(|id| span(0, QueueKind::Compute, SpanKind::Compute, id, 1, [id * 10, id * 10 + 5]));
        let gantt = Gantt::of_trace(&Trace::of(spans.collect(), vec!["cpu:0".into()]), 1);
        let excerpts = gantt.excerpts();
        assert_eq!(excerpts.len(), 1);
        assert_eq!(excerpts[0].spans.len(), GROUPS * STEPS);
        assert_eq!(excerpts[0].spans[0].start_us, 0.0);
    }
}
