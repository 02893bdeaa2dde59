//! Records the activity of devices, for traces and for comparison with predictions.

use crate::core::{End, MicroBatch, MicroBatchId, Nanoseconds};
use crate::transfers::Transfers;
use ragtag_hal::{Point, QueueKind, Timing};
use ragtag_transfer::{Route, Routes};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of submissions per queue whose timings are outstanding. If there are more, the oldest are
/// dropped, because some devices report no timings.
const LABELS: usize = 1024;

/// Without a trace, only some copies are timed on routes without a ring: those of this many first
/// micro-batches, so that short runs have times, and then of one in [`TIMED`].
const TIMED_FIRST: u64 = 16;

/// See [`TIMED_FIRST`].
const TIMED: u64 = 4;

/// Kind of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// Read of streamed weights from the model's file. The host reads, and no queue of the device.
    Read,
    /// Upload of weights.
    Weights,
    /// Upload of activations.
    Upload,
    /// Execution of a stage's program.
    Compute,
    /// Download of activations.
    Download,
    /// Download of logits.
    Logits,
    /// Copy of keys and values between the cache and host memory.
    KeysAndValues,
    /// Computation or download of a checksum of activations.
    Checksum,
}

/// A submission with its start and end, on the clock of [`Timing::now_ns`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The stage.
    pub stage: u32,
    /// The queue. For a read from the model's file, the queue that copies the weights.
    pub queue: QueueKind,
    /// Work of the submission.
    pub kind: SpanKind,
    /// Range of segments in the model: those of the stage, or of its part that is computed or copied.
    pub segments: Range<usize>,
    /// The micro-batch. `None` for reads and uploads of weights.
    pub micro_batch: Option<MicroBatchId>,
    /// Rows of the micro-batch.
    pub rows: u32,
    /// Start of the submission.
    pub start_ns: Nanoseconds,
    /// End of the submission.
    pub end_ns: Nanoseconds,
    /// Route of a copy of activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
}

/// The handling of one message by a stage's actor, on the clock of [`Timing::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The stage.
    pub stage: u32,
    /// Time at which the actor began to handle the message.
    pub start_ns: Nanoseconds,
    /// Time at which the actor finished handling the message.
    pub end_ns: Nanoseconds,
}

/// Recorded spans and turns of all stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Submissions, in the order in which their timings arrived.
    pub spans: Vec<Span>,
    /// Turns of the stages' actors.
    pub turns: Vec<Turn>,
    /// Number of spans and turns that were dropped because the trace was full.
    pub dropped: u64,
}

/// Collects the spans and turns of all actors.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceSink {
    trace: Arc<Mutex<Trace>>,
    /// Maximum number of spans, and maximum number of turns. The value 0 disables the trace.
    capacity: usize,
}

impl TraceSink {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { trace: Arc::default(), capacity }
    }

    pub(crate) fn snapshot(&self) -> Trace {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the weights of `segments` were read from the model's file.
    pub(crate) fn read(&self, stage: u32, segments: Range<usize>, [start_ns, end_ns]: [Nanoseconds; 2]) {
        let (queue, kind, micro_batch) = (QueueKind::Upload, SpanKind::Read, None);
        let span = Span { stage, queue, kind, segments, micro_batch, rows: 0, start_ns, end_ns, route: None };
        self.add(|trace| &mut trace.spans, span);
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

/// Sums over the micro-batches of one kind on a stage. The cost model uses them as inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// Number of micro-batches.
    pub micro_batches: u64,
    /// Total number of rows in the micro-batches.
    pub rows: u64,
    /// Total number of sequences in the micro-batches. A sequence counts once for each of its micro-batches.
    pub sequences: u64,
    /// Number of positions to which each row attends, summed over all rows.
    pub positions: u64,
    /// Number of rows that need logits.
    pub logit_rows: u64,
    /// Number of micro-batches with at least one logit row.
    pub with_logits: u64,
    /// Busy time of the compute queue, in nanoseconds.
    pub busy_ns: Nanoseconds,
    /// Sum of the squared computation times of the micro-batches, in square microseconds. It is used to
    /// compute the variance.
    #[serde(default)]
    pub busy_us2: u64,
}

impl Computed {
    /// Returns the difference between these sums and earlier ones, field by field.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            micro_batches: self.micro_batches.saturating_sub(before.micro_batches),
            rows: self.rows.saturating_sub(before.rows),
            sequences: self.sequences.saturating_sub(before.sequences),
            positions: self.positions.saturating_sub(before.positions),
            logit_rows: self.logit_rows.saturating_sub(before.logit_rows),
            with_logits: self.with_logits.saturating_sub(before.with_logits),
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            busy_us2: self.busy_us2.saturating_sub(before.busy_us2),
        }
    }

    /// Returns the sums for one micro-batch, with busy times of 0.
    fn of(batch: &MicroBatch) -> Self {
        let positions = batch.items.iter().map(|item| {
            let tokens = item.tokens.len() as u64;
            tokens * u64::from(item.first_position) + tokens * (tokens + 1) / 2
        });
        let logit_rows = u64::from(batch.logit_rows());
        Self {
            micro_batches: 1,
            rows: batch.rows().into(),
            sequences: batch.items.len() as u64,
            positions: positions.sum(),
            logit_rows,
            with_logits: u64::from(logit_rows > 0),
            busy_ns: 0,
            busy_us2: 0,
        }
    }

    fn add(&mut self, other: &Computed, busy_ns: Nanoseconds) {
        self.micro_batches += other.micro_batches;
        self.rows += other.rows;
        self.sequences += other.sequences;
        self.positions += other.positions;
        self.logit_rows += other.logit_rows;
        self.with_logits += other.with_logits;
        self.busy_ns += busy_ns;
        let busy_us = (busy_ns + 500) / 1000;
        self.busy_us2 = self.busy_us2.saturating_add(busy_us.saturating_mul(busy_us));
    }
}

/// Sums over micro-batches of similar size on a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeReport {
    /// Whether the micro-batches contain only decode steps.
    pub decode: bool,
    /// Upper bound on the number of rows per micro-batch, a power of two. Each micro-batch has more than half
    /// as many rows.
    pub rows: u32,
    /// Sums over all micro-batches.
    pub computed: Computed,
    /// Sums over all micro-batches except the first, whose time may include kernel compilation and command
    /// recording.
    #[serde(default)]
    pub warm: Computed,
}

impl SizeReport {
    fn new((decode, rows): (bool, u32)) -> Self {
        let (computed, warm) = (Computed::default(), Computed::default());
        Self { decode, rows, computed, warm }
    }
}

/// Description of a submission, kept until the submission's timing arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) kind: SpanKind,
    pub(crate) micro_batch: Option<MicroBatchId>,
    /// Sums for the submitted micro-batch.
    pub(crate) work: Computed,
    /// Whether all rows of the micro-batch are decode steps.
    pub(crate) decode: bool,
    /// Whether a computation ends with this submission. The parts of a stage are separate submissions.
    pub(crate) ends: bool,
    /// Number of copied bytes. 0 if the other end of the edge copies.
    pub(crate) bytes: u64,
    /// Whether the copy reads a slot of the previous stage, so that only this stage can record the transfer.
    pub(crate) reads: bool,
    /// Route of a copy of activations.
    pub(crate) route: Option<Route>,
    /// First segment and end of a part of a stage with streamed weights.
    pub(crate) part: Option<[usize; 2]>,
}

impl Label {
    /// Returns the label of a copy of weights.
    pub(crate) fn weights() -> Self {
        Self {
            kind: SpanKind::Weights,
            micro_batch: None,
            work: Computed::default(),
            decode: false,
            ends: true,
            bytes: 0,
            reads: false,
            route: None,
            part: None,
        }
    }

    /// Returns the label with the segments of a part.
    pub(crate) fn of_part(self, segments: Range<usize>) -> Self {
        Self { part: Some([segments.start, segments.end]), ..self }
    }

    pub(crate) fn of(kind: SpanKind, batch: &MicroBatch, bytes: u64) -> Self {
        let (micro_batch, decode) = (Some(batch.id), batch.decodes_only());
        Self { kind, micro_batch, work: Computed::of(batch), decode, bytes, ..Self::weights() }
    }

    pub(crate) fn copy(kind: SpanKind, micro_batch: MicroBatchId, bytes: u64, reads: bool) -> Self {
        Self { kind, micro_batch: Some(micro_batch), bytes, reads, ..Self::weights() }
    }
}

/// Transfer records of a stage's incoming and outgoing edges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    /// The incoming edge.
    pub(crate) incoming: Option<Transfers>,
    /// The outgoing edge, or the token return on the last stage.
    pub(crate) outgoing: Option<Transfers>,
}

/// Matches device-reported timings to the submissions of one stage.
#[derive(Debug)]
pub(crate) struct Recorder {
    stage: u32,
    segments: Range<usize>,
    labels: [VecDeque<(u64, Label)>; 3],
    sink: TraceSink,
    ends: Ends,
    pub(crate) prefill: Computed,
    pub(crate) decode: Computed,
    /// Sums by size of micro-batch. The key states whether all rows are decode steps, and the number of rows,
    /// rounded up to a power of two.
    sizes: BTreeMap<(bool, u32), SizeReport>,
    /// Micro-batch whose last part has not ended, and the start of its first part.
    began: Option<(Option<MicroBatchId>, Nanoseconds)>,
    /// Longest turn of the actor.
    pub(crate) longest_turn_ns: Nanoseconds,
}

impl Recorder {
    pub(crate) fn new(stage: u32, segments: Range<usize>, sink: TraceSink, ends: Ends) -> Self {
        let (prefill, decode) = (Computed::default(), Computed::default());
        let (labels, sizes) = (Default::default(), BTreeMap::new());
        let began = None;
        Self { stage, segments, labels, sink, ends, prefill, decode, sizes, began, longest_turn_ns: 0 }
    }

    /// Returns the sums over computed micro-batches, one entry per size.
    pub(crate) fn sizes(&self) -> Vec<SizeReport> {
        self.sizes.values().copied().collect()
    }

    /// Records that the activations or logits of `batch`, `bytes` bytes in size, are about to leave the
    /// stage.
    pub(crate) fn leaves(&self, batch: &MicroBatch, bytes: u64) {
        if let Some(edge) = self.ends.outgoing.as_ref().filter(|_| bytes > 0) {
            edge.begin(batch.id, batch.decodes_only(), bytes);
        }
    }

    /// Returns whether the copies of a micro-batch over a route without a ring are timed: all of them in a
    /// trace, otherwise the first [`TIMED_FIRST`] and one in [`TIMED`]. Timed copies between two GPUs are
    /// several microseconds slower.
    pub(crate) fn times(&self, MicroBatchId(id): MicroBatchId) -> bool {
        self.sink.capacity > 0 || id < TIMED_FIRST || id.is_multiple_of(TIMED)
    }

    /// Leaves out the record of a transfer whose copies are not timed at one end of the stage.
    pub(crate) fn skips(&self, end: End, micro_batch: MicroBatchId) {
        let edge = match end {
            End::Incoming => &self.ends.incoming,
            End::Outgoing => &self.ends.outgoing,
        };
        if let Some(edge) = edge {
            edge.skip(micro_batch);
        }
    }

    /// Records the routes that the outgoing edge uses from now on.
    pub(crate) fn uses(&self, routes: Routes) {
        if let Some(edge) = &self.ends.outgoing {
            edge.uses(routes);
        }
    }

    /// Records that another route of the outgoing edge replaces `route`.
    pub(crate) fn replaced(&self, route: Route) {
        if let Some(edge) = &self.ends.outgoing {
            edge.replaced(route);
        }
    }

    /// Records that an incoming micro-batch got a slot at the time `now_ns`.
    pub(crate) fn admitted(&self, micro_batch: MicroBatchId, now_ns: Nanoseconds) {
        if let Some(edge) = &self.ends.incoming {
            edge.admitted(micro_batch, now_ns);
        }
    }

    /// Records that the actor has handled a message.
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
        match label.kind {
            SpanKind::Compute => {
                // The device may not have reported the timing of another micro-batch's last part.
                let began = self.began.take().filter(|(micro_batch, _)| *micro_batch == label.micro_batch);
                let began_ns = began.map_or(start_ns, |(_, began_ns)| began_ns);
                match label.ends {
                    true => self.computed(&label, end_ns.saturating_sub(began_ns)),
                    false => self.began = Some((label.micro_batch, began_ns)),
                }
            }
            SpanKind::Upload | SpanKind::Download | SpanKind::Logits => {
                self.crossed(&label, start_ns, end_ns);
            }
            SpanKind::Read | SpanKind::Weights | SpanKind::KeysAndValues | SpanKind::Checksum => {}
        }
        let Label { kind, micro_batch, work, route, part, .. } = label;
        let rows = u32::try_from(work.rows).unwrap_or(u32::MAX);
        let segments = part.map_or_else(|| self.segments.clone(), |[start, end]| start..end);
        let stage = self.stage;
        let span = Span { stage, queue, kind, segments, micro_batch, rows, start_ns, end_ns, route };
        self.sink.add(|trace| &mut trace.spans, span);
    }

    fn computed(&mut self, label: &Label, busy_ns: Nanoseconds) {
        let computed = if label.decode { &mut self.decode } else { &mut self.prefill };
        computed.add(&label.work, busy_ns);
        let rows = u32::try_from(label.work.rows).unwrap_or(u32::MAX).checked_next_power_of_two();
        let size = (label.decode, rows.unwrap_or(u32::MAX));
        let size = self.sizes.entry(size).or_insert_with(|| SizeReport::new(size));
        if size.computed.micro_batches > 0 {
            size.warm.add(&label.work, busy_ns);
        }
        size.computed.add(&label.work, busy_ns);
    }

    fn crossed(&self, label: &Label, start_ns: Nanoseconds, end_ns: Nanoseconds) {
        let Some(id) = label.micro_batch else { return };
        match (&self.ends.incoming, &self.ends.outgoing) {
            // The previous stage's device copies.
            (Some(edge), _) if label.kind == SpanKind::Upload && label.bytes == 0 => {
                edge.arrived_whole(id, end_ns);
            }
            (Some(edge), _) if label.kind == SpanKind::Upload => {
                if label.reads {
                    edge.left(id, label.bytes, start_ns, end_ns);
                }
                edge.arrived(id, label.bytes, end_ns);
            }
            (_, Some(edge)) if label.kind != SpanKind::Upload => edge.left(id, label.bytes, start_ns, end_ns),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Item, LogitRows, SequenceId};
    use crate::transfers::Crossed;
    use ragtag_hal::{DeviceId, TimelineId};

    #[test]
    fn timings_find_their_labels_and_traces_are_bounded() {
        let sink = TraceSink::new(2);
        let mut recorder = Recorder::new(3, 4..6, sink.clone(), Ends::default());
        let timeline = TimelineId { device: DeviceId(0), queue: QueueKind::Compute };
        let work = Computed { micro_batches: 1, rows: 2, sequences: 1, positions: 9, ..Computed::default() };
        for value in 1..=4 {
            let (micro_batch, decode) = (Some(MicroBatchId(value * 10)), value == 4);
            let label = Label { kind: SpanKind::Compute, micro_batch, decode, work, ..Label::weights() };
            recorder.submitted(timeline.at(value), label);
        }
        // The device reports no timing for the second submission.
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
        let prefill = Computed { micro_batches: 2, rows: 4, sequences: 2, positions: 18, busy_ns: 4, ..work };
        let decode = Computed { busy_ns: 4, ..work };
        assert_eq!((recorder.prefill, recorder.decode), (prefill, decode));
        // The first micro-batch of each size may include compilation.
        let size = |decode, computed, warm| SizeReport { decode, rows: 2, computed, warm };
        let warm = Computed { busy_ns: 3, ..work };
        assert_eq!(recorder.sizes(), [size(false, prefill, warm), size(true, decode, Computed::default())]);
        let since = size(false, prefill, warm).computed.since(&warm);
        assert_eq!(since, Computed { busy_ns: 1, ..work });
    }

    #[test]
    fn a_micro_batch_is_summed_up() {
        let item = |first_position: u32, tokens: &[u32], logits| Item {
            sequence: SequenceId(first_position.into()),
            epoch: 0,
            first_position,
            prompt_tokens: 0,
            tokens: tokens.into(),
            blocks: [].into(),
            ring: [].into(),
            logits,
            noise: None,
        };
        let batch = |items| MicroBatch { id: MicroBatchId(1), credit: 0, items };
        let chunk = batch(vec![item(4, &[1, 2, 3], LogitRows::None), item(9, &[5], LogitRows::Last)]);
        let label = Label::of(SpanKind::Compute, &chunk, 0);
        // The rows of the first item attend to 5, 6 and 7 positions. The row of the second item attends to
        // 10.
        let expected = Computed { micro_batches: 1, rows: 4, sequences: 2, positions: 28, ..label.work };
        assert_eq!(
            (label.work, label.decode),
            (Computed { logit_rows: 1, with_logits: 1, ..expected }, false)
        );
        let step = Label::of(SpanKind::Compute, &batch(vec![item(9, &[5], LogitRows::Last)]), 0);
        assert!(step.decode);
        let first = Label::of(SpanKind::Compute, &batch(vec![item(0, &[5], LogitRows::Last)]), 0);
        assert!(!first.decode, "a prompt of one token");
    }

    #[test]
    fn edges_record_copies_at_both_ends() {
        let edge = Transfers::default();
        let (outgoing, incoming) = (Some(edge.clone()), Some(edge.clone()));
        let from = Ends { outgoing, ..Ends::default() };
        let to = Ends { incoming, ..Ends::default() };
        let mut sender = Recorder::new(0, 0..1, TraceSink::new(0), from);
        let mut receiver = Recorder::new(1, 1..2, TraceSink::new(0), to);
        let batch = MicroBatch { id: MicroBatchId(5), credit: 0, items: vec![] };
        sender.leaves(&batch, 64);
        receiver.admitted(batch.id, 10);
        let ends = [
            (QueueKind::Download, SpanKind::Download, &mut sender),
            (QueueKind::Upload, SpanKind::Upload, &mut receiver),
        ];
        for (at, (queue, kind, recorder)) in (1..).zip(ends) {
            let point = TimelineId { device: DeviceId(0), queue }.at(1);
            recorder.submitted(point, Label::copy(kind, batch.id, 64, false));
            recorder.timed(&Timing { point, start_ns: at * 100, end_ns: at * 100 + 50 });
        }
        let crossed = Crossed { crossings: 1, bytes: 64, busy_ns: 150, untimed: 0 };
        assert_eq!(edge.report().decode, crossed, "a micro-batch of no rows has decode steps alone");
    }

    #[test]
    fn untimed_transfers_are_counted() {
        let edge = Transfers::default();
        let (outgoing, incoming) = (Some(edge.clone()), Some(edge.clone()));
        let recorder = |capacity| {
            Recorder::new(
                1,
                1..2,
                TraceSink::new(capacity),
                Ends { incoming: incoming.clone(), outgoing: outgoing.clone() },
            )
        };
        let timed = |recorder: Recorder| (0..24).filter(|id| recorder.times(MicroBatchId(*id))).count();
        assert_eq!((timed(recorder(0)), timed(recorder(1))), (16 + 2, 24), "a trace shows every transfer");
        for end in [End::Incoming, End::Outgoing] {
            let recorder = recorder(0);
            recorder.leaves(&MicroBatch { id: MicroBatchId(5), credit: 0, items: vec![] }, 64);
            recorder.skips(end, MicroBatchId(5));
            edge.left(MicroBatchId(5), 64, 10, 20);
            edge.arrived(MicroBatchId(5), 64, 30);
        }
        // Each is counted, but has no time.
        assert_eq!(edge.report().decode, Crossed { untimed: 2, ..Crossed::default() });
    }
}
