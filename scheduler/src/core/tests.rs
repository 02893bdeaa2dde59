//! Tests of single decisions of the cores. The simulator checks whole runs.

use super::*;
use crate::error::{Error, Refusal};
use ragtag_graph::KvRing;
use ragtag_graph::execution::{Chunks, KvUse, PromptChunk, Reserve};
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_transfer::{Copy, OtherEnd, Piece, Route, Routes, ToReceiver, ToSender, TransferId};
use std::sync::Arc;

pub(super) fn timeline(device: u16, queue: QueueKind) -> TimelineId {
    TimelineId { device: DeviceId(device), queue }
}

pub(super) fn shape(stages: u32) -> RunShape {
    RunShape {
        stages,
        decode_groups: stages,
        credits: stages + 1,
        context: 64,
        vocabulary: 100,
        has_picks: false,
        chunks: Chunks::fixed(8),
        max_rows: 8,
        max_logit_rows: 8,
        max_sequences: 8,
        kv_blocks: 32,
        kv_use: KvUse { reserve: Reserve::Full, prefixes: None },
        limits: Limits { requests: u32::MAX, tokens: u64::MAX },
        kv_ring: None,
        prefill_from: None,
        recompute_at: None,
    }
}

/// A coordinator with a fake pipeline. The test decides when the pipeline returns a micro-batch.
pub(super) struct Run {
    pub(super) core: RunCore,
    pub(super) now: Nanoseconds,
    /// Micro-batches in flight.
    pub(super) entered: Vec<Arc<MicroBatch>>,
    pub(super) finished: Vec<(SequenceId, FinishReason)>,
    /// Number of cached tokens of each finished sequence, and of its preemptions.
    pub(super) reuse: Vec<(SequenceId, u32, u32)>,
    pub(super) failed: Vec<SequenceId>,
    pub(super) tokens: Vec<(SequenceId, u32)>,
    returned: u64,
}

impl Run {
    pub(super) fn new(shape: RunShape) -> Self {
        let core = RunCore::new(shape).unwrap();
        let (entered, finished, reuse, failed, tokens) = Default::default();
        Self { core, now: 0, entered, finished, reuse, failed, tokens, returned: 0 }
    }

    pub(super) fn step(&mut self, event: RunEvent) -> Vec<Arc<MicroBatch>> {
        let mut actions = Vec::new();
        self.core.step(self.now, event, &mut actions).unwrap();
        let mut collect = Vec::new();
        for action in actions {
            match action {
                RunAction::Enter { micro_batch, .. } => self.entered.push(micro_batch),
                RunAction::Collect { micro_batch } => collect.push(micro_batch),
                RunAction::Emit { sequence, token } => self.tokens.push((sequence, token)),
                RunAction::Finish { sequence, finished } => {
                    self.finished.push((sequence, finished.reason));
                    self.reuse.push((sequence, finished.cached_tokens, finished.preemptions));
                }
                RunAction::Fail { sequence, .. } => self.failed.push(sequence),
                RunAction::Stop => {}
            }
        }
        collect
    }

    pub(super) fn submit(&mut self, id: u64, prompt_tokens: u32, max_new_tokens: u32) {
        let want = Want::Generate { max_new_tokens, end_tokens: [].into() };
        let prompt = Prompt::new((0..prompt_tokens).collect(), want);
        self.step(RunEvent::Submit { sequence: SequenceId(id), prompt });
    }

    /// Returns the oldest micro-batch to the coordinator. Every sequence in it samples token 7.
    pub(super) fn give_back(&mut self) -> Arc<MicroBatch> {
        let batch = self.entered.remove(0);
        self.returned += 1;
        let ready = timeline(0, QueueKind::Download).at(self.returned);
        assert!(
            self.step(RunEvent::Return(Return { micro_batch: batch.id, ready, rows: ResultRows::default() }))
                .is_empty()
        );
        let collect = self.step(RunEvent::Progress { path: Path::Stages, value: self.returned });
        assert_eq!(collect, std::slice::from_ref(&batch));
        let wanted = batch
            .items
            .iter()
            .filter(|i| matches!(i.logits, LogitRows::Last | LogitRows::Picks) && self.core.is_current(i));
        let sampled = wanted.map(|i| Sampled { sequence: i.sequence, token: Ok(7), stops: false }).collect();
        self.step(RunEvent::Collected { micro_batch: batch.id, sampled });
        batch
    }
}

/// Returns the sequence, first position and number of rows of each item.
pub(super) fn items(batch: &MicroBatch) -> Vec<(u64, u32, usize)> {
    batch.items.iter().map(|i| (i.sequence.0, i.first_position, i.tokens.len())).collect()
}

/// Checks a sequence that reaches the length at which its RoPE frequencies change: all its tokens enter again, and
/// then it goes on. A prompt that is as long from the start enters once.
#[test]
fn a_growing_sequence_is_computed_again_once() {
    let mut run = Run::new(RunShape { recompute_at: Some(11), ..shape(1) });
    run.submit(0, 9, 5);
    let batch = |run: &mut Run| {
        let batch = run.give_back();
        (items(&batch), batch.items[0].length(), batch.items[0].logits)
    };
    let wanted = [(0, 8, 9, LogitRows::None), (8, 1, 9, LogitRows::Last), (9, 1, 10, LogitRows::Last)];
    let again = [(0, 8, 11, LogitRows::None), (8, 3, 11, LogitRows::Last)];
    let after = [(11, 1, 12, LogitRows::Last), (12, 1, 13, LogitRows::Last)];
    for (first, rows, length, logits) in [&wanted[..], &again, &after].concat() {
        assert_eq!(batch(&mut run), (vec![(0, first, rows)], length, logits));
    }
    assert_eq!(run.tokens, [(SequenceId(0), 7); 5]);
    assert_eq!(run.finished, [(SequenceId(0), FinishReason::MaxTokens)]);
    let tokens: Vec<_> = (0..9).chain([7, 7]).collect();
    run.submit(1, 11, 2);
    assert_eq!(batch(&mut run), (vec![(1, 0, 8)], 11, LogitRows::None));
    assert_eq!(batch(&mut run), (vec![(1, 8, 3)], 11, LogitRows::Last));
    assert_eq!(batch(&mut run), (vec![(1, 11, 1)], 12, LogitRows::Last));
    // The tokens that enter again are those of the prompt and the generated ones.
    run.submit(2, 9, 5);
    let rows = |run: &mut Run| run.give_back().items[0].tokens.clone();
    let entered: Vec<_> = (0..5).map(|_| rows(&mut run)).collect();
    assert_eq!(entered[3..].concat(), tokens);
}

#[test]
fn prompts_fill_chunks_one_after_the_other() {
    let mut run = Run::new(shape(2));
    run.submit(0, 20, 4);
    run.submit(1, 5, 4);
    let entered: Vec<_> = run.entered.iter().map(|b| items(b)).collect();
    assert_eq!(entered, [vec![(0, 0, 8)], vec![(0, 8, 8)], vec![(0, 16, 4)]], "one credit each");
    assert_eq!(run.entered.iter().map(|b| b.logit_rows()).collect::<Vec<_>>(), [0, 0, 1]);
    run.give_back();
    assert_eq!(items(&run.entered[2]), [(1, 0, 5)]);
    let credits: Vec<_> = run.entered.iter().map(|b| b.credit).collect();
    assert_eq!(credits, [1, 2, 0], "no two in flight share a credit");
}

#[test]
fn short_prompts_share_a_chunk_and_decode_rows_join_them() {
    let mut run = Run::new(RunShape { credits: 1, ..shape(1) });
    run.submit(0, 3, 4);
    run.submit(1, 3, 4);
    run.submit(2, 9, 4);
    run.give_back();
    // The first sequence's decode row goes first. Two complete prompts follow, and then as many rows of the
    // third prompt as fit.
    assert_eq!(items(&run.entered[0]), [(0, 3, 1), (1, 0, 3), (2, 0, 4)]);
}

#[test]
fn each_prompt_gets_the_chunk_listed_for_its_length() {
    let chunk = |from_tokens, rows| PromptChunk { from_tokens, rows };
    let chunks = Chunks { by_prompt: vec![chunk(0, 2), chunk(5, 8), chunk(17, 4)], beside_decode: 8 };
    for (tokens, rows) in [(4, 2), (5, 5), (16, 8), (17, 4)] {
        let mut run = Run::new(RunShape { chunks: chunks.clone(), credits: 1, ..shape(1) });
        run.submit(0, tokens, 1);
        assert_eq!(items(&run.entered[0]), [(0, 0, rows)], "{tokens} tokens");
    }
    // The total length of all waiting prompts determines the chunk.
    let mut run = Run::new(RunShape { chunks, credits: 1, ..shape(1) });
    run.submit(0, 4, 1);
    run.submit(1, 4, 1);
    run.submit(2, 4, 1);
    run.give_back();
    assert_eq!(items(&run.entered[0]), [(0, 2, 2), (1, 0, 4), (2, 0, 2)]);
}

#[test]
fn a_long_prompt_does_not_hold_up_sequences_that_generate() {
    let chunks = Chunks { beside_decode: 3, ..Chunks::fixed(8) };
    let mut run = Run::new(RunShape { chunks, ..shape(1) });
    run.submit(0, 4, 40);
    assert_eq!(run.entered[0].rows(), 4, "no sequence generates yet");
    run.give_back();
    run.submit(1, 20, 1);
    let (mut rows_between, mut most) = (0, 0);
    while !run.finished.iter().any(|(id, _)| id.0 == 1) {
        let batch = run.give_back();
        // One decode row, and the chunk of the prompt.
        assert!(batch.rows() <= 4, "{:?}", items(&batch));
        rows_between += batch.rows();
        if batch.items.iter().any(|item| item.sequence.0 == 0) {
            most = most.max(rows_between);
            rows_between = 0;
        }
    }
    assert!(most <= 8, "a micro-batch for each of the two credits, not {most} rows");
}

#[test]
fn generating_sequences_are_divided_among_the_stages() {
    let mut run = Run::new(shape(2));
    for id in 0..8 {
        run.submit(id, 1, 60);
    }
    for _ in 0..20 {
        run.give_back();
    }
    for _ in 0..10 {
        assert_eq!(run.entered.len(), 2, "one for each stage");
        assert_eq!(run.give_back().items.len(), 4, "half of the sequences");
    }
}

#[test]
fn the_sequence_that_waited_longest_decodes_first() {
    let mut run = Run::new(RunShape { max_sequences: 2, ..shape(1) });
    for id in 0..3 {
        run.submit(id, 1, 60);
    }
    for _ in 0..10 {
        run.give_back();
    }
    let rows: Vec<_> = (0..6).flat_map(|_| items(&run.give_back())).map(|(id, ..)| id).collect();
    assert_eq!(rows.len(), 12);
    for turn in rows.windows(3) {
        let each: std::collections::BTreeSet<_> = turn.iter().collect();
        assert_eq!(each.len(), 3, "the three take turns: {rows:?}");
    }
}

#[test]
fn decode_rows_respect_the_logit_rows_of_a_micro_batch() {
    let mut run = Run::new(RunShape { max_logit_rows: 2, ..shape(1) });
    for id in 0..5 {
        run.submit(id, 1, 20);
    }
    let mut most = 0;
    for _ in 0..40 {
        most = most.max(run.give_back().logit_rows());
    }
    assert_eq!(most, 2);
}

#[test]
fn sequences_waiting_for_cache_blocks_are_not_overtaken() {
    let mut run = Run::new(RunShape { kv_blocks: 4, ..shape(1) });
    run.submit(0, 30, 10); // 3 blocks
    run.submit(1, 30, 3); // 2 blocks
    run.submit(2, 1, 1); // 1 block, which is free
    assert_eq!((run.core.counts().active, run.core.counts().waiting), (1, 2));
    run.step(RunEvent::Cancel { sequence: SequenceId(0) });
    assert_eq!((run.core.counts().active, run.core.counts().waiting), (2, 0));
    run.step(RunEvent::Cancel { sequence: SequenceId(1) });
    run.step(RunEvent::Cancel { sequence: SequenceId(1) });
    let cancelled = |id| (SequenceId(id), FinishReason::Cancelled);
    assert_eq!(run.finished, [cancelled(0), cancelled(1)]);
    while !run.entered.is_empty() {
        run.give_back();
    }
    assert_eq!(run.tokens, [(SequenceId(2), 7)], "results of cancelled sequences are dropped");
    assert_eq!(run.core.counts().free_blocks, 4);
}

#[test]
fn sequences_wait_for_the_blocks_of_kv_rings() {
    let ring = KvRing { window: 2, blocks: 2, total: 4 };
    let mut run = Run::new(RunShape { kv_ring: Some(ring), ..shape(1) });
    run.submit(0, 60, 5); // 4 blocks, and 2 of a ring
    run.submit(1, 10, 1); // 1 block of each
    run.submit(2, 30, 1); // 2 blocks of each, but only one of a ring is left
    let counts = run.core.counts();
    assert_eq!((counts.active, counts.waiting), (2, 1));
    // The second sequence takes its blocks when its rows enter.
    assert_eq!((counts.free_blocks, counts.free_ring_blocks), (28, 2));
    let item = &run.entered[0].items[0];
    assert_eq!((item.blocks.len(), item.ring.len()), (4, 2));
    run.step(RunEvent::Cancel { sequence: SequenceId(0) });
    assert_eq!((run.core.counts().active, run.core.counts().waiting), (2, 0));
    while !run.entered.is_empty() {
        run.give_back();
    }
    let counts = run.core.counts();
    assert_eq!((counts.free_blocks, counts.free_ring_blocks), (32, 4));
}

#[test]
fn kv_rings_that_are_too_short_are_refused() {
    let core = |window, blocks, total| {
        let ring = KvRing { window, blocks, total };
        RunCore::new(RunShape { kv_ring: Some(ring), ..shape(1) })
    };
    // A window of 11 positions and 8 rows can span 3 blocks.
    assert!(core(11, 3, 3).is_ok());
    for [window, blocks, total] in [[11, 2, 6], [11, 3, 2], [0, 3, 3], [u32::MAX, 3, 3]] {
        let message = core(window, blocks, total).unwrap_err().to_string();
        assert!(message.contains("too short for micro-batches of 8 rows"), "{message}");
    }
}

#[test]
fn cancelled_sequences_leave_their_queue() {
    // There is one credit, so each queue has entries. Sequences 0 and 1 have tokens to feed back, 2 and 3
    // have prompts to enter, and 4 and 5 wait for blocks.
    let mut run = Run::new(RunShape { credits: 1, kv_blocks: 8, ..shape(1) });
    run.submit(0, 4, 4);
    run.submit(1, 4, 4);
    run.give_back();
    run.give_back();
    for id in 2..6 {
        run.submit(id, 30, 10);
    }
    run.give_back();
    let counts = run.core.counts();
    assert_eq!((counts.active, counts.waiting), (4, 2));
    for id in [5, 2, 0] {
        run.step(RunEvent::Cancel { sequence: SequenceId(id) });
    }
    while !run.entered.is_empty() {
        run.give_back();
    }
    let ends: Vec<_> = run.finished.iter().map(|(id, reason)| (id.0, *reason)).collect();
    let (cancelled, whole) = (FinishReason::Cancelled, FinishReason::MaxTokens);
    assert_eq!(ends[..3], [(5, cancelled), (2, cancelled), (0, cancelled)]);
    assert_eq!(ends[3..], [(1, whole), (3, whole), (4, whole)]);
    let counts = run.core.counts();
    assert_eq!((counts.active, counts.waiting, counts.free_blocks), (0, 0, 8));
}

/// Checks a queue so long that the test takes minutes if the time of a step grows with the queue.
#[test]
fn a_long_queue_costs_its_length_once() {
    const MANY: u64 = 1 << 17;
    let mut run = Run::new(RunShape { credits: 1, kv_blocks: 1, ..shape(1) });
    for id in 0..MANY {
        run.submit(id, 1, 2);
    }
    for _ in 0..2 * 1000 {
        run.give_back();
    }
    assert_eq!(run.finished.len(), 1000);
    run.step(RunEvent::Stop);
    assert_eq!(run.finished.len() as u64, MANY);
}

#[test]
fn a_token_that_cannot_be_used_fails_its_sequence_at_its_position() {
    let vocabulary = shape(1).vocabulary;
    for (token, error) in [
        (Ok(vocabulary - 1), None),
        (Ok(vocabulary), Some(Refusal::UnknownToken { token: vocabulary, position: 5, vocabulary }.into())),
        (Err("no logits".into()), Some(Error::Sampling { position: 5, cause: "no logits".into() })),
    ] {
        let mut run = Run::new(shape(1));
        run.submit(0, 4, 9);
        run.give_back();
        // The second token follows four prompt tokens and the first new token.
        let micro_batch = run.entered.remove(0).id;
        let ready = timeline(0, QueueKind::Download).at(2);
        run.step(RunEvent::Return(Return { micro_batch, ready, rows: ResultRows::default() }));
        run.step(RunEvent::Progress { path: Path::Stages, value: 2 });
        let sampled = vec![Sampled { sequence: SequenceId(0), token, stops: false }];
        let mut actions = Vec::new();
        run.core.step(0, RunEvent::Collected { micro_batch, sampled }, &mut actions).unwrap();
        let failure = error.map(|error| RunAction::Fail { sequence: SequenceId(0), error });
        assert_eq!(actions.iter().find(|action| matches!(action, RunAction::Fail { .. })), failure.as_ref());
        assert_eq!(run.core.counts().active, u32::from(failure.is_none()));
    }
}

#[test]
fn a_failure_ends_everything_once() {
    let mut run = Run::new(shape(2));
    run.submit(0, 20, 4);
    run.submit(1, 20, 4);
    run.step(RunEvent::Failed { error: Error::Stopped });
    run.step(RunEvent::Failed { error: Error::Stopped });
    run.submit(2, 1, 1);
    assert_eq!(run.failed, [SequenceId(0), SequenceId(1), SequenceId(2)]);
    let counts = run.core.counts();
    assert_eq!((counts.free_blocks, counts.free_credits, counts.in_flight), (32, 3, 0));
}

#[test]
fn impossible_events_are_refused() {
    let ready = timeline(0, QueueKind::Download).at(1);
    let wrong = [
        RunEvent::Return(Return { micro_batch: MicroBatchId(1), ready, rows: ResultRows::default() }),
        RunEvent::Collected { micro_batch: MicroBatchId(0), sampled: Vec::new() },
        RunEvent::Submit { sequence: SequenceId(0), prompt: Prompt::new([1].into(), Want::Logits) },
    ];
    for event in wrong {
        let mut run = Run::new(shape(2));
        run.submit(0, 20, 4);
        let refused = run.core.step(0, event, &mut Vec::new());
        assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    }
    assert!(matches!(RunCore::new(RunShape { credits: 0, ..shape(1) }), Err(Error::Spec { .. })));
    assert!(matches!(
        RunCore::new(RunShape { chunks: Chunks::fixed(9), ..shape(1) }),
        Err(Error::Spec { .. })
    ));
}

fn batch(id: u64, rows: usize) -> Arc<MicroBatch> {
    let item = Item {
        sequence: SequenceId(0),
        epoch: 0,
        first_position: 0,
        prompt_tokens: 0,
        tokens: vec![0; rows],
        blocks: [0].into(),
        ring: [].into(),
        logits: LogitRows::Last,
        noise: None,
    };
    Arc::new(MicroBatch { id: MicroBatchId(id), credit: 0, items: vec![item] })
}

const ROUTE: Route = Route::HostStaged { chunk_bytes: 32, depth: 2 };

fn stage_shape(slots: u32, incoming: bool, outgoing: bool) -> StageShape {
    routed(slots, incoming.then_some(ROUTE), outgoing.then_some(ROUTE))
}

/// Returns a stage whose neighbours have as many slots.
fn routed(slots: u32, incoming: Option<Route>, outgoing: Option<Route>) -> StageShape {
    let [incoming, outgoing] = [incoming, outgoing].map(|route| route.map(Routes::from));
    let parts = Vec::new();
    StageShape {
        slots,
        row_bytes: 16,
        incoming,
        outgoing,
        next_slots: slots,
        verified: false,
        parts,
        from_file: None,
        passes: Vec::new(),
    }
}

fn device(shapes: &[StageShape]) -> DeviceCore {
    DeviceCore::new(shapes, QueuePoints::new(|queue| timeline(1, queue))).unwrap()
}

/// Returns a device with one stage.
fn stage(slots: u32, incoming: bool, outgoing: bool) -> DeviceCore {
    device(&[stage_shape(slots, incoming, outgoing)])
}

fn step_device(core: &mut DeviceCore, event: DeviceEvent) -> Vec<(usize, StageAction)> {
    let mut actions = Vec::new();
    core.step(0, event, &mut actions).unwrap();
    actions.into_iter().map(|DeviceAction { stage, action }| (stage, action)).collect()
}

/// Steps the only stage of a device.
fn step(core: &mut DeviceCore, event: StageEvent) -> Vec<StageAction> {
    let actions = step_device(core, DeviceEvent::Stage { stage: 0, event });
    actions.into_iter().map(|(_, action)| action).collect()
}

fn downloaded(core: &mut DeviceCore, downloaded: u64) -> Vec<StageAction> {
    let progress = DeviceEvent::Progress(Progress { downloaded, ..Progress::default() });
    step_device(core, progress).into_iter().map(|(_, action)| action).collect()
}

/// Returns the message for a transfer of two rows in one place of the ring.
fn staged(transfer: u64, place: u32, ready: u64) -> StageEvent {
    StageEvent::FromPrevious(ToReceiver::Piece {
        transfer: TransferId(transfer),
        piece: Piece { place, offset: 0, bytes: 32 },
        ready: timeline(0, QueueKind::Download).at(ready),
    })
}

fn place_free(place: u32, after: Point) -> StageEvent {
    StageEvent::FromNext(ToSender::Place { place, after })
}

#[test]
fn a_middle_stage_submits_everything_ahead() {
    let mut core = stage(3, true, true);
    let point = |queue, value| timeline(1, queue).at(value);
    let (compute, upload, download) = (QueueKind::Compute, QueueKind::Upload, QueueKind::Download);
    for id in 0..2 {
        let micro_batch = batch(id, 2);
        assert!(step(&mut core, StageEvent::HandOff { micro_batch: micro_batch.clone() }).is_empty());
        let (slot, value) = (id as u32, id + 1);
        let copy = |end, waits, signal| {
            let (transfer, other) = (TransferId(id), OtherEnd::Ring { start: u64::from(slot) * 32 });
            let copy = Copy { transfer, slot, other, offset: 0, bytes: 32, waits, signal };
            StageAction::Copy { end, copy }
        };
        let foreign = timeline(0, download).at(value);
        // No point has passed yet. Both micro-batches are already submitted to all three queues.
        let expected = [
            copy(End::Incoming, vec![foreign], point(upload, value)),
            StageAction::ToPrevious(ToSender::Place { place: slot, after: point(upload, value) }),
            StageAction::Compute {
                slot,
                micro_batch: micro_batch.clone(),
                part: 0,
                ends: true,
                waits: vec![point(upload, value)],
                signal: point(compute, value),
            },
            copy(End::Outgoing, vec![point(compute, value)], point(download, value)),
            StageAction::HandOff { micro_batch: micro_batch.clone() },
            StageAction::ToNext(ToReceiver::Piece {
                transfer: TransferId(id),
                piece: Piece { place: slot, offset: 0, bytes: 32 },
                ready: point(download, value),
            }),
        ];
        assert_eq!(step(&mut core, staged(id, slot, value)), expected);
    }
    assert!(!core.is_idle() && !core.wants_next(0) && core.awaited().is_empty());
}

#[test]
fn short_of_ring_slots_a_stage_computes_and_waits_with_its_download() {
    let mut core = stage(4, false, true);
    for id in 0..2 {
        step(&mut core, StageEvent::HandOff { micro_batch: batch(id, 2) });
    }
    let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(2, 2) });
    assert!(matches!(actions[..], [StageAction::Compute { slot: 2, .. }, StageAction::HandOff { .. }]));
    assert!(core.wants_next(0));
    let after: Point = timeline(2, QueueKind::Upload).at(1);
    let actions = step(&mut core, place_free(0, after));
    let [StageAction::Copy { end: End::Outgoing, copy }, StageAction::ToNext(_)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert!(copy.slot == 2 && copy.waits.contains(&after));
}

#[test]
fn a_stage_counts_its_micro_batches_and_their_waiting() {
    let mut core = stage(1, false, false);
    let mut at = |now, event| core.step(now, event, &mut Vec::new()).unwrap();
    let hand_off = |id, rows| {
        let event = StageEvent::HandOff { micro_batch: batch(id, rows) };
        DeviceEvent::Stage { stage: 0, event }
    };
    at(10, hand_off(0, 2));
    at(20, hand_off(1, 3));
    at(50, DeviceEvent::Progress(Progress { downloaded: 1, ..Progress::default() }));
    let expected = StageStats {
        micro_batches: 2,
        rows: 5,
        waited_for_slot_ns: 30,
        verification: Verification::default(),
    };
    assert_eq!(core.stats(0), expected);
}

#[test]
fn a_stage_computes_verified_activations_only_after_the_comparison() {
    let mut core = device(&[StageShape { verified: true, ..stage_shape(2, true, false) }]);
    let mut at = |now, event| {
        let mut actions = Vec::new();
        core.step(now, event, &mut actions).unwrap();
        let awaited = core.awaited();
        (actions.into_iter().map(|action| action.action).collect::<Vec<_>>(), awaited, core.stats(0))
    };
    let stage = |event| DeviceEvent::Stage { stage: 0, event };
    let (transfer, end) = (TransferId(0), End::Incoming);
    let source = |sum| stage(StageEvent::FromPrevious(ToReceiver::Sum { transfer, sum }));
    let own = |sum| stage(StageEvent::Summed { end, transfer, sum });
    let uploaded = |uploaded| DeviceEvent::Progress(Progress { uploaded, ..Progress::default() });
    at(0, stage(StageEvent::HandOff { micro_batch: batch(0, 2) }));
    let (actions, awaited, _) = at(0, stage(staged(0, 0, 1)));
    assert!(matches!(actions[..], [StageAction::Copy { .. }, StageAction::ToPrevious(_)]));
    assert_eq!(awaited, [QueueKind::Upload]);
    let (actions, awaited, _) = at(100, uploaded(1));
    let after = timeline(1, QueueKind::Upload).at(1);
    let computed = timeline(1, QueueKind::Compute).at(1);
    let signal = timeline(1, QueueKind::Download).at(1);
    let waits = vec![after];
    let sum = VerifyAction::Sum { end, transfer, slot: 0, bytes: 32, waits, computed, signal };
    let sum = StageAction::Verify(sum);
    assert_eq!((actions, awaited), (vec![sum], vec![QueueKind::Download]));
    assert!(at(100, own(7)).0.is_empty(), "the sender's checksum is missing");
    let (actions, ..) = at(130, source(8));
    assert_eq!(actions, [StageAction::ToPrevious(ToSender::Again { transfer, slot: 0 })]);
    // The same transfer comes again, with the right bytes.
    at(200, stage(staged(0, 1, 2)));
    at(300, uploaded(2));
    at(310, source(8));
    let (actions, _, stats) = at(320, own(8));
    let [StageAction::ToPrevious(message), StageAction::Compute { slot: 0, .. }, ..] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*message, ToSender::Confirmed(transfer));
    let expected = Verification { transfers: 1, wrong: 1, waited_ns: 30 + 20 };
    assert_eq!(stats.verification, expected);
}

#[test]
fn short_of_slots_a_stage_leaves_chunks_in_the_ring() {
    let mut core = stage(1, true, false);
    step(&mut core, StageEvent::HandOff { micro_batch: batch(0, 2) });
    let actions = step(&mut core, staged(0, 0, 1));
    let [.., StageAction::Return(returned), StageAction::Logits { signal, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(returned.ready, *signal);
    step(&mut core, StageEvent::HandOff { micro_batch: batch(1, 2) });
    assert!(step(&mut core, staged(1, 1, 2)).is_empty());
    assert_eq!(core.awaited(), [QueueKind::Download]);
    let actions = downloaded(&mut core, signal.value);
    assert!(matches!(
        &actions[..2],
        [StageAction::Copy { end: End::Incoming, copy }, StageAction::ToPrevious(_)] if copy.slot == 0
    ));
    assert!(core.awaited().is_empty());
    downloaded(&mut core, 2);
    assert!(core.is_idle());
}

#[test]
fn micro_batches_one_after_the_other_use_one_slot() {
    let mut core = stage(3, false, false);
    for id in 0..4 {
        let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(id, 2) });
        assert!(matches!(actions[0], StageAction::Compute { slot: 0, .. }), "{actions:?}");
        downloaded(&mut core, id + 1);
    }
}

#[test]
fn a_stage_that_writes_into_the_next_one_waits_for_a_free_slot_there() {
    let mut core = device(&[routed(2, None, Some(Route::Peer))]);
    let sent = |actions: &[StageAction]| {
        let copies = actions.iter().filter_map(|action| match action {
            StageAction::Copy { end: End::Outgoing, copy } => Some((copy.slot, copy.other)),
            _ => None,
        });
        copies.collect::<Vec<_>>()
    };
    for (id, slot) in [(0, 0), (1, 1)] {
        let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(id, 2) });
        assert_eq!(sent(&actions), [(slot, OtherEnd::Slot(slot))]);
    }
    downloaded(&mut core, 2);
    let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(2, 2) });
    assert!(matches!(actions[..], [StageAction::Compute { slot: 0, .. }, StageAction::HandOff { .. }]));
    assert!(core.wants_next(0));
    let actions = step(&mut core, StageEvent::FromNext(ToSender::Slot(0)));
    assert_eq!(sent(&actions), [(0, OtherEnd::Slot(0))]);
}

#[test]
fn a_stage_announces_its_free_slots_to_a_stage_that_writes_into_them() {
    let mut core = device(&[routed(1, Some(Route::Peer), None)]);
    step(&mut core, StageEvent::HandOff { micro_batch: batch(0, 2) });
    let ready = timeline(0, QueueKind::Download).at(1);
    let written = ToReceiver::Written { transfer: TransferId(0), slot: 0, ready };
    let actions = step(&mut core, StageEvent::FromPrevious(written));
    let StageAction::Copy { end: End::Incoming, copy } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!((copy.other, &copy.waits), (OtherEnd::None, &vec![ready]));
    assert_eq!(core.awaited(), [QueueKind::Download], "the only slot is in use");
    assert_eq!(downloaded(&mut core, 1), [StageAction::ToPrevious(ToSender::Slot(0))]);
    assert!(core.is_idle() && core.awaited().is_empty());
}

#[test]
fn a_slot_that_the_next_stage_reads_is_free_after_the_read() {
    let mut core = device(&[routed(1, None, Some(Route::Import))]);
    let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(0, 2) });
    let [.., StageAction::ToNext(ToReceiver::Readable { slot: 0, ready, .. })] = actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(ready, timeline(1, QueueKind::Compute).at(1));
    assert!(step(&mut core, StageEvent::HandOff { micro_batch: batch(1, 2) }).is_empty());
    assert!(core.wants_next(0));
    let after = timeline(2, QueueKind::Upload).at(1);
    let read = ToSender::Read { transfer: TransferId(0), after };
    let actions = step(&mut core, StageEvent::FromNext(read));
    let [StageAction::Copy { end: End::Outgoing, copy }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((copy.other, &copy.waits), (OtherEnd::None, &vec![after]));
    let actions = downloaded(&mut core, copy.signal.value);
    assert!(matches!(actions[0], StageAction::Compute { slot: 0, .. }));
}

/// Returns a device with two stages: the first of a pipeline, and a later one that receives from device 0.
fn two_stages() -> DeviceCore {
    device(&[stage_shape(4, false, true), stage_shape(4, true, false)])
}

fn enter(core: &mut DeviceCore, stage: usize, id: u64) -> Vec<(usize, StageAction)> {
    let event = StageEvent::HandOff { micro_batch: batch(id, 2) };
    step_device(core, DeviceEvent::Stage { stage, event })
}

fn computed(actions: &[(usize, StageAction)]) -> Vec<(usize, u64)> {
    let computed = actions.iter().filter_map(|(stage, action)| match action {
        StageAction::Compute { micro_batch, .. } => Some((*stage, micro_batch.id.0)),
        _ => None,
    });
    computed.collect()
}

fn progress(core: &mut DeviceCore, computed: u64, uploaded: u64) -> Vec<(usize, StageAction)> {
    step_device(core, DeviceEvent::Progress(Progress { computed, uploaded, downloaded: 0 }))
}

#[test]
fn stages_that_share_a_device_compute_only_what_has_arrived() {
    let mut core = two_stages();
    enter(&mut core, 1, 0);
    // The first stage does not wait for the other one's input.
    assert_eq!(computed(&enter(&mut core, 0, 1)), [(0, 1)]);
    let actions = step_device(&mut core, DeviceEvent::Stage { stage: 1, event: staged(0, 0, 1) });
    assert!(matches!(actions[..], [(1, StageAction::Copy { .. }), (1, StageAction::ToPrevious(_))]));
    assert_eq!(core.awaited(), [QueueKind::Upload, QueueKind::Compute]);
    assert!(computed(&progress(&mut core, 1, 0)).is_empty(), "another micro-batch comes back");
    assert_eq!(computed(&progress(&mut core, 1, 1)), [(1, 0)]);
    assert!(core.awaited().is_empty() && !core.is_idle());
}

/// The only micro-batch of a device blocks no other one, so its computation may wait for its input in the queue.
#[test]
fn a_micro_batch_that_is_alone_is_submitted_before_its_input_has_arrived() {
    let mut core = two_stages();
    assert_eq!(computed(&enter(&mut core, 0, 0)), [(0, 0)]);
    progress(&mut core, 1, 0);
    enter(&mut core, 1, 0);
    let actions = step_device(&mut core, DeviceEvent::Stage { stage: 1, event: staged(0, 0, 1) });
    assert_eq!(computed(&actions), [(1, 0)]);
    assert!(computed(&progress(&mut core, 1, 1)).is_empty());
}

#[test]
fn stages_that_share_a_device_compute_the_oldest_micro_batch_first() {
    let mut core = two_stages();
    assert_eq!(computed(&enter(&mut core, 0, 4)), [(0, 4)]);
    // Micro-batch 4 comes back to the last stage. Micro-batch 5 must not be ahead of it in the queue.
    assert!(computed(&enter(&mut core, 0, 5)).is_empty());
    enter(&mut core, 1, 4);
    step_device(&mut core, DeviceEvent::Stage { stage: 1, event: staged(4, 0, 1) });
    assert_eq!(computed(&progress(&mut core, 0, 1)), [(1, 4)], "the oldest waits behind the running one");
    assert!(computed(&progress(&mut core, 0, 1)).is_empty(), "two computations fill the queue");
    assert_eq!(computed(&progress(&mut core, 1, 1)), [(0, 5)], "no older one is left");
}

#[test]
fn stages_that_share_a_device_signal_one_order_of_points() {
    let mut core = two_stages();
    let mut actions = enter(&mut core, 0, 1);
    enter(&mut core, 1, 0);
    actions.extend(step_device(&mut core, DeviceEvent::Stage { stage: 1, event: staged(0, 0, 1) }));
    actions.extend(progress(&mut core, 1, 1));
    let downloads = actions.iter().filter_map(|(stage, action)| match action {
        StageAction::Copy { copy: Copy { signal, .. }, end: End::Outgoing }
        | StageAction::Logits { signal, .. } => Some((*stage, signal.value)),
        _ => None,
    });
    assert_eq!(downloads.collect::<Vec<_>>(), [(0, 1), (1, 2)]);
}

#[test]
fn a_device_refuses_events_of_other_stages() {
    let event = StageEvent::HandOff { micro_batch: batch(0, 2) };
    let refused = two_stages().step(0, DeviceEvent::Stage { stage: 2, event }, &mut Vec::new());
    assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    let points = QueuePoints::new(|queue| timeline(1, queue));
    assert!(DeviceCore::new(&[], points).is_err());
}

/// A copy of weights or a computation: its name and part, the values that it waits for, and the value that it
/// signals.
type PartStep = (&'static str, usize, Vec<(QueueKind, u64)>, u64);

/// Returns the copies of weights and the computations among `actions`.
fn of_parts(actions: &[StageAction]) -> Vec<PartStep> {
    let values = |waits: &[Point]| waits.iter().map(|point| (point.timeline.queue, point.value)).collect();
    let of = |action: &StageAction| match action {
        StageAction::Stream(StreamAction::Copy { part, waits, signal, .. }) => {
            Some(("stream", *part, values(waits), signal.value))
        }
        StageAction::Compute { part, waits, signal, .. } => {
            Some(("compute", *part, values(waits), signal.value))
        }
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn weights_from_the_file_are_read_into_places_in_turn() {
    use QueueKind::{Compute, Upload};
    let parts = vec![Some(0), Some(1), Some(2), None, Some(0), Some(1), Some(2)];
    let host = TimelineId { device: DeviceId(9), queue: Upload };
    let from_file = Some(FileParts { timeline: host, parts: vec![0, 1, 4, 5, 6] });
    let mut core = device(&[StageShape { parts, from_file, ..stage_shape(4, false, true) }]);
    let mut actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(0, 2) });
    actions.extend(step(&mut core, StageEvent::HandOff { micro_batch: batch(1, 2) }));
    let (mut reads, mut places) = (Vec::new(), [None; 2]);
    for action in &actions {
        match action {
            StageAction::Stream(StreamAction::Read { part, place, after, signal }) => {
                assert_eq!(*signal, host.at(reads.len() as u64 + 1));
                assert_eq!(*after, places[*place].map(|copied| timeline(1, Upload).at(copied)), "{action:?}");
                assert_eq!(*place, reads.len() % 2);
                reads.push(*part);
            }
            StageAction::Stream(StreamAction::Copy { part, place: Some(place), waits, signal }) => {
                assert_eq!((reads.last(), waits.last()), (Some(part), Some(&host.at(reads.len() as u64))));
                assert!(waits.len() == 1 || waits[0].timeline == timeline(1, Compute));
                places[*place] = Some(signal.value);
            }
            StageAction::Stream(StreamAction::Copy { part, waits, .. }) => {
                assert!(*part == 2 && waits.iter().all(|wait| wait.timeline != host), "{action:?}");
            }
            _ => {}
        }
    }
    assert_eq!(reads, [0, 1, 4, 5, 6, 0, 1, 4, 5, 6, 0, 1]);
}

#[test]
fn an_arena_gets_its_next_weights_right_after_its_computation() {
    use QueueKind::{Compute, Upload};
    let parts = vec![None, Some(0), Some(1), Some(0), None, Some(1)];
    let mut core = device(&[StageShape { parts, ..stage_shape(4, false, true) }]);
    let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(0, 2) });
    let first = [
        ("stream", 1, vec![], 1),
        ("stream", 2, vec![], 2),
        ("compute", 0, vec![], 1),
        ("compute", 1, vec![(Upload, 1)], 2),
        ("stream", 3, vec![(Compute, 2)], 3),
        ("compute", 2, vec![(Upload, 2)], 3),
        ("stream", 5, vec![(Compute, 3)], 4),
        ("compute", 3, vec![(Upload, 3)], 4),
        ("stream", 1, vec![(Compute, 4)], 5),
        ("compute", 4, vec![], 5),
        ("compute", 5, vec![(Upload, 4)], 6),
        ("stream", 2, vec![(Compute, 6)], 6),
    ];
    assert_eq!(of_parts(&actions), first);
    let ends = |action: &&StageAction| matches!(action, StageAction::Compute { ends: true, .. });
    let StageAction::Compute { part: 5, .. } = actions.iter().find(ends).unwrap() else { panic!() };
    // The weights of the first parts are already on their way when the next micro-batch arrives.
    let actions = step(&mut core, StageEvent::HandOff { micro_batch: batch(1, 2) });
    let next = of_parts(&actions);
    assert_eq!(
        next[..3],
        [
            ("compute", 0, vec![], 7),
            ("compute", 1, vec![(Upload, 5)], 8),
            ("stream", 3, vec![(Compute, 8)], 7),
        ]
    );
    assert_eq!(next[3], ("compute", 2, vec![(Upload, 6)], 9));
}
