//! Traces of device queues and actors. Trace viewers show them, and [`overlap`] computes how long the stages
//! work at the same time.

use crate::stage::StageInfo;
use ragtag_hal::QueueKind;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::sim::{SimSpan, SimSpanKind, SimSummary};
use ragtag_scheduler::{Span, SpanKind, Turn};
use serde_json::json;

/// Thread number of a device's actor in an exported trace. The device's queues have lower numbers.
const ACTOR_TRACK: usize = QueueKind::ALL.len();

/// Thread number and name of a stage's reads from the model's file.
const FILE_TRACK: (usize, &str) = (ACTOR_TRACK + 1, "file");

/// Trace of a run, with one span per submission. The times of all devices are on the same clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    spans: Vec<Span>,
    turns: Vec<Turn>,
    /// For each stage, the label of its device.
    devices: Vec<String>,
}

impl Trace {
    pub(crate) fn new(trace: ragtag_scheduler::Trace, stages: &[StageInfo]) -> Self {
        let devices = stages.iter().map(|s| s.adapter.label()).collect();
        Self { spans: trace.spans, turns: trace.turns, devices }
    }

    /// Creates a trace of spans. `devices` has the device of each stage. The trace contains no actor turns.
    pub fn of(spans: Vec<Span>, devices: Vec<String>) -> Self {
        Self { spans, turns: Vec::new(), devices }
    }

    /// Creates the trace of a simulated plan. Its times are those of the simulation's clock. It contains no
    /// actor turns.
    pub fn simulated(plan: &Plan, summary: &SimSummary) -> Self {
        let span = |span: &SimSpan| {
            let segments = plan.all_stages().nth(span.stage as usize)?.segments.range();
            let kind = match span.kind {
                SimSpanKind::Prefill | SimSpanKind::Decode => SpanKind::Compute,
                SimSpanKind::Read => SpanKind::Read,
                SimSpanKind::Weights => SpanKind::Weights,
                SimSpanKind::Upload => SpanKind::Upload,
                SimSpanKind::Download => SpanKind::Download,
                SimSpanKind::Logits => SpanKind::Logits,
                SimSpanKind::KeysAndValues => SpanKind::KeysAndValues,
                SimSpanKind::Checksum => SpanKind::Checksum,
            };
            let SimSpan { stage, queue, micro_batch, rows, start_ns, end_ns, .. } = *span;
            Some(Span { stage, queue, kind, segments, micro_batch, rows, start_ns, end_ns, route: None })
        };
        Self {
            spans: summary.spans.iter().filter_map(span).collect(),
            turns: Vec::new(),
            devices: plan.all_stages().map(|s| s.device.clone()).collect(),
        }
    }

    /// Returns the spans in the order in which they were recorded.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the labels of the devices, one per stage.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns the actor turns, one for each message that an actor handled.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Exports the trace in Chrome's trace-event format, which Perfetto also reads. Each stage is a process
    /// with the name of its device. Each queue, the actor and the reads from the model's file are threads.
    pub fn to_chrome_json(&self) -> String {
        let mut events = Vec::new();
        for (stage, device) in self.devices.iter().enumerate() {
            events
                .push(json!({ "ph": "M", "pid": stage, "name": "process_name", "args": { "name": device } }));
            let queues = QueueKind::ALL.map(|queue| (queue.index(), queue.name()));
            let reads = self.spans.iter().any(|s| s.stage as usize == stage && s.kind == SpanKind::Read);
            let file = reads.then_some(FILE_TRACK);
            for (lane, name) in queues.into_iter().chain([(ACTOR_TRACK, "actor")]).chain(file) {
                let name = json!({ "name": name });
                events.push(
                    json!({ "ph": "M", "pid": stage, "tid": lane, "name": "thread_name", "args": name }),
                );
            }
        }
        for span in &self.spans {
            let (thread, category) = track(span);
            events.push(json!({
                "ph": "X",
                "pid": span.stage,
                "tid": thread,
                "name": span_name(span),
                "cat": category,
                "ts": span.start_ns as f64 / 1e3,
                "dur": span.end_ns.saturating_sub(span.start_ns) as f64 / 1e3,
                "args": arguments(span),
            }));
        }
        for turn in &self.turns {
            events.push(json!({
                "ph": "X",
                "pid": turn.stage,
                "tid": ACTOR_TRACK,
                "name": "turn",
                "cat": "actor",
                "ts": turn.start_ns as f64 / 1e3,
                "dur": turn.end_ns.saturating_sub(turn.start_ns) as f64 / 1e3,
            }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
    }
}

/// Returns the thread number and name of a span in an exported trace. A stage's spans on one thread do not
/// overlap.
fn track(span: &Span) -> (usize, &'static str) {
    match span.kind {
        SpanKind::Read => FILE_TRACK,
        _ => (span.queue.index(), span.queue.name()),
    }
}

/// Returns the arguments of a span in an exported trace. A copy of activations has its route.
fn arguments(span: &Span) -> serde_json::Value {
    let mut arguments = json!({ "rows": span.rows, "micro_batch": span.micro_batch.map(|id| id.0) });
    if let Some(route) = span.route {
        arguments["route"] = route.name().into();
    }
    arguments
}

/// Returns the name of a span in an exported trace. It contains the span's segments and micro-batch.
fn span_name(span: &Span) -> String {
    let what = match span.kind {
        SpanKind::Read => return format!("read of segments {}", range(span)),
        SpanKind::Weights => return format!("weights of segments {}", range(span)),
        SpanKind::Compute => format!("segments {}", range(span)),
        SpanKind::Upload => "activation in".into(),
        SpanKind::Download => "activation out".into(),
        SpanKind::Logits => "logits out".into(),
        SpanKind::KeysAndValues => "keys and values".into(),
        SpanKind::Checksum => "checksum".into(),
    };
    match span.micro_batch {
        Some(id) => format!("{what} · {id}"),
        None => what,
    }
}

fn range(span: &Span) -> String {
    match (span.segments.start, span.segments.end.saturating_sub(1)) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

/// Busy time of each stage in a trace, and time for which stages overlap, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Time from the start of the first computation to the end of the last computation.
    pub wall_ns: u64,
    /// For each stage, the time during which it computed.
    pub busy_ns: Vec<u64>,
    /// Time during which at least two stages computed.
    pub together_ns: u64,
}

/// Returns the time for which each stage computed, and the time for which at least two stages computed
/// concurrently.
pub fn overlap(trace: &Trace) -> Overlap {
    let computing = || trace.spans.iter().filter(|s| s.kind == SpanKind::Compute && s.end_ns > s.start_ns);
    let mut busy_ns = vec![0; trace.devices.len()];
    let mut edges = Vec::new();
    for span in computing() {
        if let Some(busy) = busy_ns.get_mut(span.stage as usize) {
            *busy += span.end_ns - span.start_ns;
        }
        edges.push((span.start_ns, 1i32));
        edges.push((span.end_ns, -1));
    }
    edges.sort_unstable();
    let (mut active, mut since, mut together_ns) = (0, 0, 0);
    for &(at, change) in &edges {
        if active >= 2 {
            together_ns += at - since;
        }
        active += change;
        since = at;
    }
    let wall_ns = match (edges.first(), edges.last()) {
        (Some(first), Some(last)) => last.0 - first.0,
        _ => 0,
    };
    Overlap { wall_ns, busy_ns, together_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::core::MicroBatchId;
    use ragtag_transfer::Route;

    fn span(stage: u32, kind: SpanKind, start_ns: u64, end_ns: u64) -> Span {
        let micro_batch = Some(MicroBatchId(start_ns));
        let queue = QueueKind::Compute;
        Span { stage, queue, kind, segments: 0..3, micro_batch, rows: 2, start_ns, end_ns, route: None }
    }

    fn trace() -> Trace {
        let spans = vec![
            span(0, SpanKind::Compute, 100, 200),
            span(1, SpanKind::Compute, 150, 260),
            span(0, SpanKind::Compute, 200, 250),
            Span { route: Some(Route::Peer), ..span(1, SpanKind::Upload, 0, 1000) },
            Span { micro_batch: None, ..span(1, SpanKind::Read, 0, 90) },
        ];
        let turns = vec![Turn { stage: 1, start_ns: 300, end_ns: 400 }];
        Trace { spans, turns, devices: vec!["cpu:0".into(), "cpu:1".into()] }
    }

    #[test]
    fn the_page_names_the_tracks_of_a_trace() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/formats.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let events: serde_json::Value = serde_json::from_str(&trace().to_chrome_json()).unwrap();
        let names: Vec<_> = events["traceEvents"].as_array().unwrap().iter().collect();
        let names = names.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 1);
        let tracks =
            names.map(|event| format!("{} `{}`", event["tid"], event["args"]["name"].as_str().unwrap()));
        let tracks: Vec<_> = tracks.collect();
        let (last, others) = tracks.split_last().unwrap();
        let stated = format!("Its tracks (`tid`) are {} and {last}.", others.join(", "));
        assert!(page.contains(&stated), "docs/formats.md lacks: {stated}");
    }

    #[test]
    fn overlap_is_the_time_in_which_two_stages_compute() {
        let expected = Overlap { wall_ns: 160, busy_ns: vec![150, 110], together_ns: 100 };
        assert_eq!(overlap(&trace()), expected);
        assert_eq!(overlap(&Trace::default()), Overlap::default());
    }

    #[test]
    fn every_queue_has_a_track_and_every_span_a_name() {
        let json: serde_json::Value = serde_json::from_str(&trace().to_chrome_json()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.iter().filter(|e| e["name"] == "thread_name").count(), 9, "one has reads");
        let read = events.iter().find(|e| e["name"] == "read of segments 0-2").unwrap();
        assert_eq!((read["pid"].as_u64(), read["tid"].as_u64()), (Some(1), Some(4)));
        let turn = events.iter().find(|e| e["cat"] == "actor").unwrap();
        assert_eq!(
            (turn["pid"].as_u64(), turn["tid"].as_u64(), turn["dur"].as_f64()),
            (Some(1), Some(3), Some(0.1))
        );
        let first = events.iter().find(|e| e["ph"] == "X").unwrap();
        assert_eq!(first["name"], "segments 0-2 · micro-batch 100");
        assert_eq!((first["ts"].as_f64(), first["dur"].as_f64()), (Some(0.1), Some(0.1)));
        let routes: Vec<_> = events.iter().filter_map(|e| e["args"]["route"].as_str()).collect();
        assert_eq!(routes, ["peer"]);
    }
}
