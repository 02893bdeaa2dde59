//! Tests of logs: a core is driven by hand, with losses, and its log is replayed, altered, truncated and limited.

use super::replay::replay_from;
use super::{AFTER_CHECK, CHECK, Chain, EVENT_LOG_BYTES, EventLog, LogEnd, Replay, ReplayError, replay};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_graph::execution::{Chunks, KvUse};
use ragtag_hal::{DeviceId, QueueKind, TimelineId};
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, FigureSource};
use ragtag_scheduler::core::{
    Item, Limits, MicroBatch, Path as Route, Prompt, Return, RunAction, RunCore, RunEvent, RunShape, Sampled,
    SequenceId, Want,
};
use ragtag_scheduler::{EventSink, Sampling};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

fn plan() -> Plan {
    let kind = ragtag_hal::AdapterKind::Cpu;
    let facts = DeviceFacts::assumed("a:0", kind, 1, 1 << 30, FigureSource::User);
    Planner::new(&Model::bundled().unwrap()).context(64).device_facts(vec![facts]).plan().unwrap()
}

fn shape() -> RunShape {
    RunShape {
        stages: 2,
        decode_groups: 2,
        credits: 3,
        context: 4096,
        vocabulary: 100,
        has_picks: false,
        chunks: Chunks::fixed(128),
        max_rows: 128,
        max_logit_rows: 8,
        max_sequences: 8,
        kv_blocks: 1024,
        kv_use: KvUse::default(),
        limits: Limits::default(),
        kv_ring: None,
        prefill_from: None,
        recompute_at: None,
    }
}

/// A run whose stages answer at once.
struct Run {
    core: RunCore,
    log: EventLog,
    now: u64,
    done: u64,
    entered: VecDeque<Arc<MicroBatch>>,
    tokens: u64,
}

impl Run {
    fn step(&mut self, event: RunEvent) {
        self.now += 1000;
        let mut actions = Vec::new();
        self.log.event(self.now, &event);
        let outcome = self.core.step(self.now, event, &mut actions);
        self.log.actions(&actions, outcome.as_ref().err());
        outcome.unwrap();
        for action in actions {
            match action {
                RunAction::Enter { micro_batch, .. } => self.entered.push_back(micro_batch),
                RunAction::Collect { micro_batch } => self.collect(&micro_batch),
                RunAction::Emit { .. } => self.tokens += 1,
                _ => {}
            }
        }
    }

    fn collect(&mut self, batch: &MicroBatch) {
        let current = batch.items.iter().filter(|item| item.logit_rows() > 0 && self.core.is_current(item));
        let token = |item: &Item| (item.end_position() * 7 + 3) % 100;
        let sample = |item: &Item| Sampled { sequence: item.sequence, token: Ok(token(item)), stops: false };
        let sampled = current.map(sample).collect();
        self.step(RunEvent::Collected { micro_batch: batch.id, sampled });
    }

    /// Returns the results of the next micro-batch. Returns whether there was one.
    fn answer(&mut self) -> bool {
        let Some(batch) = self.entered.pop_front() else { return false };
        self.done += 1;
        let ready = TimelineId { device: DeviceId(0), queue: QueueKind::Download }.at(self.done);
        self.step(RunEvent::Return(Return { micro_batch: batch.id, ready, rows: Default::default() }));
        self.step(RunEvent::Progress { path: Route::Stages, value: self.done });
        true
    }

    fn lose(&mut self) {
        self.step(RunEvent::Interrupted);
        self.entered.clear();
        self.done = 0;
        self.step(RunEvent::Restarted { shape: Box::new(RunShape { credits: 2, ..shape() }) });
    }
}

/// Logs a run of `sequences` sequences that loses its stages every `between` micro-batches. Returns the number of its
/// tokens.
fn record(path: &Path, limit_bytes: u64, [sequences, new_tokens]: [u32; 2], between: u64) -> u64 {
    let log = EventLog::with_limit(path, &plan(), limit_bytes).unwrap();
    let core = RunCore::new(shape()).unwrap();
    let mut run = Run { core, log, now: 0, done: 0, entered: VecDeque::new(), tokens: 0 };
    run.log.started(&shape());
    for id in 0..u64::from(sequences) {
        let sequence = SequenceId(id);
        run.log.samples(sequence, Sampling { seed: Some(id), ..Sampling::default() });
        let want = Want::Generate { max_new_tokens: new_tokens, end_tokens: [].into() };
        let tokens = (0..4 + id as u32).collect();
        run.step(RunEvent::Submit { sequence, prompt: Prompt::new(tokens, want) });
    }
    let mut answered = 0u64;
    while run.answer() {
        answered += 1;
        if answered.is_multiple_of(between) {
            run.lose();
        }
    }
    run.step(RunEvent::Stop);
    run.tokens
}

fn replay_error(path: &Path) -> ReplayError {
    match replay(path) {
        Err(Error::EventLog { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// Replays a log with these bytes.
fn of_bytes(bytes: &[u8]) -> Result<Replay> {
    replay_from(Path::new("log"), bytes)
}

#[test]
fn a_log_of_ten_thousand_tokens_with_losses_replays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let tokens = record(&path, EVENT_LOG_BYTES, [8, 1250], 400);
    assert_eq!(tokens, 10_000);
    let replayed = replay(&path).unwrap();
    assert_eq!((replayed.tokens, replayed.end, replayed.failed), (tokens, LogEnd::Stopped, 0));
    assert!(replayed.losses.len() > 3, "{:?}", replayed.losses);
    assert!(replayed.losses.iter().all(|loss| loss.token_after_s > loss.restarted_after_s));
    for (id, request) in (0..).zip(&replayed.requests) {
        assert_eq!((request.tokens.len(), request.sampling.unwrap().seed), (1250, Some(id)));
        assert!(request.is_repeatable());
    }
    assert_eq!(replayed.trace.spans().len() as u64, replayed.micro_batches);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// Flips a bit of each byte, and cuts the log behind each byte.
#[test]
fn altered_and_truncated_logs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    record(&path, EVENT_LOG_BYTES, [2, 3], 3);
    let whole = std::fs::read(&path).unwrap();
    of_bytes(&whole).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(matches!(of_bytes(&bytes), Err(Error::EventLog { .. })), "byte {at}");
        assert!(matches!(of_bytes(&whole[..at]), Err(Error::EventLog { .. })), "{at} bytes");
    }
    let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    std::fs::write(&path, lines[..lines.len() - 1].concat()).unwrap();
    assert!(matches!(replay_error(&path), ReplayError::Truncated { events } if events > 4));
    // A line is missing, occurs twice, or follows the last one.
    for other in [
        [&lines[..5], &lines[6..]].concat(),
        [&lines[..6], &lines[5..]].concat(),
        [&lines[..], &lines[1..2]].concat(),
    ] {
        std::fs::write(&path, other.concat()).unwrap();
        assert!(matches!(replay_error(&path), ReplayError::Altered { .. }));
    }
}

/// Writes the lines with new checks, after `change` has changed each of them.
fn sealed(path: &Path, whole: &[u8], mut change: impl FnMut(&mut String)) {
    let (mut chain, mut bytes) = (Chain::new(), Vec::new());
    for line in whole.split_inclusive(|byte| *byte == b'\n') {
        let body = &line[..line.len() - CHECK.len() - 16 - AFTER_CHECK.len()];
        let mut body = String::from_utf8(body.to_vec()).unwrap();
        change(&mut body);
        let check = chain.next(body.as_bytes());
        bytes.extend([body.as_bytes(), CHECK, check.as_bytes(), AFTER_CHECK].concat());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn logs_with_right_checks_and_other_events_do_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    record(&path, EVENT_LOG_BYTES, [2, 3], 3);
    let whole = std::fs::read(&path).unwrap();
    let changed = |from: &str, to: &str| {
        let mut changes = 0;
        sealed(&path, &whole, |line| {
            if changes == 0 && line.contains(from) {
                (*line, changes) = (line.replacen(from, to, 1), 1);
            }
        });
        assert_eq!(changes, 1, "{from}");
        replay_error(&path)
    };
    let collected = changed("\"token\":{\"Ok\":31}", "\"token\":{\"Ok\":32}");
    assert!(matches!(&collected, ReplayError::Mismatch { what, .. } if what == "Collected"), "{collected}");
    assert!(matches!(changed("\"max_new_tokens\":3", "\"max_new_tokens\":1"), ReplayError::Mismatch { .. }));
    // The core asserts that no credit is returned twice, and that all timelines advance.
    assert!(matches!(changed("\"credits\":2", "\"credits\":1"), ReplayError::Mismatch { .. }));
    for (from, to) in [
        ("\"kv_blocks\":1024", "\"kv_blocks\":4294967295"),
        ("\"credits\":3", "\"credits\":0"),
        ("\"sequence\":0", "\"sequence\":\"zero\""),
        ("{\"at\":", "{\"end\":\"stopped\",\"at\":"),
        ("{\"at\":", "{\"then\":"),
    ] {
        let error = changed(from, to);
        assert!(matches!(error, ReplayError::Invalid { .. }), "{from}: {error}");
    }
}

#[test]
fn other_files_are_no_logs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    for (text, error) in [
        ("", ReplayError::NotALog),
        ("GGUF", ReplayError::NotALog),
        ("{\"ragtag_plan\":1}\n", ReplayError::NotALog),
        ("{\"ragtag_events\":2,\"x\":0}\n", ReplayError::Version { version: 2 }),
        ("{\"ragtag_events\":1,\"x\":0}\n", ReplayError::Altered { line: 1 }),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(replay_error(&path), error, "{text}");
    }
    assert!(matches!(replay(&folder.path().join("none")), Err(Error::File { action: "read", .. })));
}

#[test]
fn a_log_ends_at_its_limit_and_replays_until_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let tokens = record(&path, 40_000, [8, 100], 50);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!((30_000..=40_000).contains(&bytes), "{bytes} bytes");
    let replayed = replay(&path).unwrap();
    assert_eq!(replayed.end, LogEnd::Limit);
    assert!((1..tokens).contains(&replayed.tokens), "{} of {tokens}", replayed.tokens);
}
