//! What devices really did and when, for traces and for comparing with what was predicted.

use crate::core::{MicroBatch, MicroBatchId, Nanoseconds};
use ragtag_hal::{Point, QueueKind, Timing};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Submissions of a queue that may wait for their timing; older ones are forgotten, since some devices time nothing.
const LABELS: usize = 1024;

/// What a submission did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// Weights went to the device.
    Weights,
    /// An activation entered.
    Upload,
    /// A stage's program ran.
    Compute,
    /// An activation left.
    Download,
    /// Logits went to the host.
    Logits,
}

/// One submission as it ran, on the clock of [`Timing::now_ns`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The stage.
    pub stage: u32,
    /// The queue.
    pub queue: QueueKind,
    /// What it did.
    pub kind: SpanKind,
    /// The stage's segments.
    pub segments: Range<usize>,
    /// The micro-batch; none for weights.
    pub micro_batch: Option<MicroBatchId>,
    /// Its rows.
    pub rows: u32,
    /// Start.
    pub start_ns: Nanoseconds,
    /// End.
    pub end_ns: Nanoseconds,
}

/// One turn of a stage's actor: from when it took up a message until it was ready for the next, on the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The stage.
    pub stage: u32,
    /// Start.
    pub start_ns: Nanoseconds,
    /// End.
    pub end_ns: Nanoseconds,
}

/// Spans and turns of all stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// In the order in which they were learnt.
    pub spans: Vec<Span>,
    /// What the actors did themselves.
    pub turns: Vec<Turn>,
    /// How many more spans and turns there were than were to be kept.
    pub dropped: u64,
}

/// Where actors put their spans.
#[derive(Clone, Debug)]
pub(crate) struct TraceSink {
    trace: Arc<Mutex<Trace>>,
    /// Most spans kept, and most turns; 0 for no trace.
    capacity: usize,
}

impl TraceSink {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { trace: Arc::default(), capacity }
    }

    pub(crate) fn snapshot(&self) -> Trace {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add<T>(&self, list: impl FnOnce(&mut Trace) -> &mut Vec<T>, item: T) {
        if self.capacity == 0 {
            return;
        }
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let list = list(&mut trace);
        if list.len() < self.capacity {
            list.push(item);
        } else {
            trace.dropped += 1;
        }
    }
}

/// Micro-batches of one kind, as a stage computed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// How many.
    pub micro_batches: u64,
    /// Their rows.
    pub rows: u64,
    /// How long the compute queue worked on them.
    pub busy_ns: Nanoseconds,
}

/// What a submission was, until its timing comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) kind: SpanKind,
    pub(crate) micro_batch: Option<MicroBatchId>,
    pub(crate) rows: u32,
    /// Whether every row is a decode step.
    pub(crate) decode: bool,
}

impl Label {
    pub(crate) fn of(kind: SpanKind, batch: &MicroBatch) -> Self {
        let decode = batch.items.iter().all(|i| i.tokens.len() == 1 && i.first_position > 0);
        Self { kind, micro_batch: Some(batch.id), rows: batch.rows(), decode }
    }

    pub(crate) fn copy(kind: SpanKind, micro_batch: MicroBatchId) -> Self {
        Self { kind, micro_batch: Some(micro_batch), rows: 0, decode: false }
    }

    pub(crate) const WEIGHTS: Label =
        Label { kind: SpanKind::Weights, micro_batch: None, rows: 0, decode: false };
}

/// Matches the timings of one stage with what was submitted.
#[derive(Debug)]
pub(crate) struct Recorder {
    stage: u32,
    segments: Range<usize>,
    labels: [VecDeque<(u64, Label)>; 3],
    sink: TraceSink,
    pub(crate) prefill: Computed,
    pub(crate) decode: Computed,
    /// The actor's longest turn.
    pub(crate) longest_turn_ns: Nanoseconds,
}

impl Recorder {
    pub(crate) fn new(stage: u32, segments: Range<usize>, sink: TraceSink) -> Self {
        let (prefill, decode) = (Computed::default(), Computed::default());
        Self { stage, segments, labels: Default::default(), sink, prefill, decode, longest_turn_ns: 0 }
    }

    /// The actor has handled a message.
    pub(crate) fn turned(&mut self, start_ns: Nanoseconds, end_ns: Nanoseconds) {
        self.longest_turn_ns = self.longest_turn_ns.max(end_ns.saturating_sub(start_ns));
        self.sink.add(|trace| &mut trace.turns, Turn { stage: self.stage, start_ns, end_ns });
    }

    pub(crate) fn submitted(&mut self, signal: Point, label: Label) {
        let labels = &mut self.labels[signal.timeline.queue.index()];
        if labels.len() == LABELS {
            labels.pop_front();
        }
        labels.push_back((signal.value, label));
    }

    pub(crate) fn timed(&mut self, timing: &Timing) {
        let queue = timing.point.timeline.queue;
        let labels = &mut self.labels[queue.index()];
        while labels.front().is_some_and(|(value, _)| *value < timing.point.value) {
            labels.pop_front();
        }
        let Some((_, label)) = labels.pop_front_if(|(value, _)| *value == timing.point.value) else { return };
        let Timing { start_ns, end_ns, .. } = *timing;
        if label.kind == SpanKind::Compute {
            let computed = if label.decode { &mut self.decode } else { &mut self.prefill };
            computed.micro_batches += 1;
            computed.rows += u64::from(label.rows);
            computed.busy_ns += end_ns.saturating_sub(start_ns);
        }
        let Label { kind, micro_batch, rows, .. } = label;
        let (stage, segments) = (self.stage, self.segments.clone());
        let span = Span { stage, queue, kind, segments, micro_batch, rows, start_ns, end_ns };
        self.sink.add(|trace| &mut trace.spans, span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::{DeviceId, TimelineId};

    #[test]
    fn timings_find_their_labels_and_traces_are_bounded() {
        let sink = TraceSink::new(2);
        let mut recorder = Recorder::new(3, 4..6, sink.clone());
        let timeline = TimelineId { device: DeviceId(0), queue: QueueKind::Compute };
        let label =
            |id, decode| Label { micro_batch: Some(MicroBatchId(id)), rows: 2, decode, ..Label::WEIGHTS };
        for value in 1..=4 {
            let label = Label { kind: SpanKind::Compute, ..label(value * 10, value == 4) };
            recorder.submitted(timeline.at(value), label);
        }
        // The device did not time the second one.
        for value in [1, 3, 4] {
            let (start_ns, end_ns) = (value * 100, value * 100 + value);
            recorder.timed(&Timing { point: timeline.at(value), start_ns, end_ns });
        }
        let trace = sink.snapshot();
        let ids: Vec<_> = trace.spans.iter().map(|s| (s.micro_batch.unwrap().0, s.start_ns)).collect();
        assert_eq!((ids, trace.dropped), (vec![(10, 100), (30, 300)], 1));
        for (start_ns, end_ns) in [(5, 9), (20, 27), (30, 31)] {
            recorder.turned(start_ns, end_ns);
        }
        let turn = |start_ns, end_ns| Turn { stage: 3, start_ns, end_ns };
        let trace = sink.snapshot();
        assert_eq!((trace.turns, trace.dropped), (vec![turn(5, 9), turn(20, 27)], 2));
        assert_eq!(recorder.longest_turn_ns, 7);
        assert_eq!(recorder.prefill, Computed { micro_batches: 2, rows: 4, busy_ns: 4 });
        assert_eq!(recorder.decode, Computed { micro_batches: 1, rows: 2, busy_ns: 4 });
    }
}
