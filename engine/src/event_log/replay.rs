//! Replays a log: checks its lines, steps a core with its events, and compares the actions.

use super::{AFTER_CHECK, CHECK, Chain, Header, LINE_BYTES, LogEnd, LoggedRun, Samples, VERSION, digest};
use crate::error::{Error, Result};
use crate::trace::Trace;
use ragtag_hal::QueueKind;
use ragtag_scheduler::core::{
    FinishReason, MicroBatch, MicroBatchId, Nanoseconds, Prompt, RunAction, RunCore, RunEvent, RunShape,
    SequenceId, Want,
};
use ragtag_scheduler::{Sampling, Span, SpanKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of cache blocks and of credits of a run. Larger numbers are those of no machine.
const MOST: u32 = 1 << 24;

/// Reason why a log cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file does not begin like a log.
    #[error("it is not a log of events")]
    NotALog,
    /// The log has another version.
    #[error("it has version {version} of the format; this program reads version {VERSION}")]
    Version {
        /// Version of the log.
        version: u64,
    },
    /// The check of a line is wrong.
    #[error("line {line} is damaged, or was altered")]
    Altered {
        /// Number of the line, from 1.
        line: u64,
    },
    /// A line has the right check, but is no line of a log.
    #[error("line {line} is invalid: {cause}")]
    Invalid {
        /// Number of the line, from 1.
        line: u64,
        /// Reason why the line is invalid.
        cause: String,
    },
    /// The log has no last line.
    #[error(
        "it is truncated after {events} events: the run still goes on, its process was killed, or the disk was full"
    )]
    Truncated {
        /// Number of events. All of them replay.
        events: u64,
    },
    /// The core decides otherwise than the recorded one.
    #[error("event {event} at line {line} ({what}) has other actions than the log: {actions}")]
    Mismatch {
        /// Number of the event, from 0.
        event: u64,
        /// Number of its line, from 1.
        line: u64,
        /// Kind of the event.
        what: String,
        /// Beginning of the list of actions, or the reason why there are none.
        actions: String,
    },
}

/// Interruption of a run by the failure of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Loss {
    /// Time since the first event, in seconds.
    pub at_s: f64,
    /// Time from the interruption until other stages were there, in seconds. `None` if the run ended before.
    pub restarted_after_s: Option<f64>,
    /// Time from the interruption until the next token, in seconds.
    pub token_after_s: Option<f64>,
}

/// A sequence of a replayed run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoggedRequest {
    /// The sequence.
    pub sequence: SequenceId,
    /// The request.
    pub prompt: Prompt,
    /// Sampling settings and seed, if they alone determine the tokens.
    pub sampling: Option<Sampling>,
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Reason for the end of the sequence. `None` if it failed, or the log ends before.
    pub reason: Option<FinishReason>,
}

/// Result of a replay. All actions are those of the log.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Replay {
    /// The recorded run.
    pub run: LoggedRun,
    /// Number of events.
    pub events: u64,
    /// Number of actions.
    pub actions: u64,
    /// Time from the first to the last event, in seconds.
    pub duration_s: f64,
    /// Number of micro-batches.
    pub micro_batches: u64,
    /// Number of generated tokens.
    pub tokens: u64,
    /// Number of sequences that ended with an error.
    pub failed: u64,
    /// Interruptions, in order.
    pub losses: Vec<Loss>,
    /// Reason why the log ends.
    pub end: LogEnd,
    /// Shape of the run at its start.
    #[serde(skip)]
    pub shape: RunShape,
    /// All sequences, in the order of their ids.
    #[serde(skip)]
    pub requests: Vec<LoggedRequest>,
    /// Micro-batches from their entry to the reading of their results. Each credit counts as a device.
    #[serde(skip)]
    pub trace: Trace,
}

/// Replays the log at `path`. Needs neither the model nor its devices.
///
/// # Errors
/// [`Error::File`] if the file cannot be read, and [`Error::EventLog`] if it is no complete, unaltered log, or if the core
/// of this version decides otherwise.
pub fn replay(path: &Path) -> Result<Replay> {
    let failed = |cause| Error::File { action: "read", path: path.into(), cause };
    replay_from(path, BufReader::new(File::open(path).map_err(failed)?))
}

/// Replays the log that `input` reads from `path`.
pub(super) fn replay_from(path: &Path, input: impl BufRead) -> Result<Replay> {
    let failed = |cause| Error::File { action: "read", path: path.into(), cause };
    let mut lines = Lines { input, chain: Chain::new(), line: 0 };
    let replayed = replay_lines(&mut lines);
    replayed.map_err(|error| match error {
        Failure::Read(cause) => failed(cause),
        Failure::Log(cause) => Error::EventLog { path: path.into(), cause },
    })
}

enum Failure {
    Read(io::Error),
    Log(ReplayError),
}

impl From<ReplayError> for Failure {
    fn from(cause: ReplayError) -> Self {
        Self::Log(cause)
    }
}

/// Any line but the first: a step, the settings of the next sequence, or the end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: Option<Nanoseconds>,
    event: Option<RunEvent>,
    actions: Option<String>,
    samples: Option<Samples>,
    end: Option<LogEnd>,
}

fn replay_lines(lines: &mut Lines<impl BufRead>) -> std::result::Result<Replay, Failure> {
    let header = lines.header()?;
    let mut replayer = Replayer::new(header).map_err(|cause| lines.invalid(cause))?;
    loop {
        let Some(text) = lines.next()? else {
            return Err(ReplayError::Truncated { events: replayer.events }.into());
        };
        match serde_json::from_slice(&text).map_err(|cause| lines.invalid(cause))? {
            Line { at: Some(at), event: Some(event), actions: Some(actions), samples: None, end: None } => {
                replayer.step(lines.line, at, event, &actions)?;
            }
            Line { samples: Some(samples), at: None, event: None, actions: None, end: None } => {
                replayer.samples = Some(samples);
            }
            Line { end: Some(end), at: None, event: None, actions: None, samples: None } => {
                // Nothing follows the last line.
                return if lines.raw()?.is_none() {
                    Ok(replayer.end(end))
                } else {
                    Err(lines.altered().into())
                };
            }
            _ => return Err(lines.invalid("its fields belong to different lines").into()),
        }
    }
}

/// Lines of a log, without their checks.
struct Lines<R> {
    input: R,
    chain: Chain,
    /// Number of the latest line, from 1.
    line: u64,
}

impl<R: BufRead> Lines<R> {
    fn altered(&self) -> ReplayError {
        ReplayError::Altered { line: self.line }
    }

    fn invalid(&self, cause: impl std::fmt::Display) -> ReplayError {
        ReplayError::Invalid { line: self.line, cause: cause.to_string() }
    }

    /// Reads the first line.
    fn header(&mut self) -> std::result::Result<Header, Failure> {
        let start = format!("{{\"ragtag_events\":{VERSION},");
        let raw = self.raw()?.ok_or(ReplayError::NotALog)?;
        if !raw.starts_with(start.as_bytes()) {
            let other: Option<serde_json::Value> = serde_json::from_slice(&raw).ok();
            let version = other.and_then(|other| other.get("ragtag_events")?.as_u64());
            let error = version.map_or(ReplayError::NotALog, |version| ReplayError::Version { version });
            return Err(error.into());
        }
        let text = self.checked(raw)?;
        Ok(serde_json::from_slice(&text).map_err(|cause| self.invalid(cause))?)
    }

    /// Reads the next line. Returns `None` at the end of the file, also in the middle of a line.
    fn next(&mut self) -> std::result::Result<Option<Vec<u8>>, Failure> {
        match self.raw()? {
            Some(raw) if raw.ends_with(b"\n") => Ok(Some(self.checked(raw)?)),
            _ => Ok(None),
        }
    }

    fn raw(&mut self) -> std::result::Result<Option<Vec<u8>>, Failure> {
        let mut raw = Vec::new();
        self.line += 1;
        let most = LINE_BYTES as u64 + 1;
        self.input.by_ref().take(most).read_until(b'\n', &mut raw).map_err(Failure::Read)?;
        match raw.len() {
            0 => Ok(None),
            length if length > LINE_BYTES => Err(self.altered().into()),
            _ => Ok(Some(raw)),
        }
    }

    /// Takes the check off a line.
    fn checked(&mut self, mut raw: Vec<u8>) -> std::result::Result<Vec<u8>, ReplayError> {
        let length =
            raw.len().checked_sub(CHECK.len() + 16 + AFTER_CHECK.len()).ok_or_else(|| self.altered())?;
        let check = self.chain.next(&raw[..length]);
        if raw[length..] != [CHECK, check.as_bytes(), AFTER_CHECK].concat() {
            return Err(self.altered());
        }
        raw.truncate(length);
        raw.push(b'}');
        Ok(raw)
    }
}

/// Steps a core with the events of a log.
struct Replayer {
    core: RunCore,
    run: LoggedRun,
    shape: RunShape,
    actions: Vec<RunAction>,
    events: u64,
    acted: u64,
    times: Option<(Nanoseconds, Nanoseconds)>,
    samples: Option<Samples>,
    requests: BTreeMap<SequenceId, LoggedRequest>,
    tokens: u64,
    failed: u64,
    losses: Vec<Loss>,
    interrupted_ns: Nanoseconds,
    entered: HashMap<MicroBatchId, (Nanoseconds, Arc<MicroBatch>)>,
    spans: Vec<Span>,
}

/// Checks that a core of this shape takes no more memory than any machine has.
fn check(shape: &RunShape) -> std::result::Result<(), String> {
    let most = shape.kv_blocks.max(shape.credits).max(shape.kv_ring.map_or(0, |ring| ring.total));
    if most > MOST { Err(format!("{most} blocks or credits")) } else { Ok(()) }
}

impl Replayer {
    fn new(header: Header) -> std::result::Result<Self, String> {
        let Header { run, shape, .. } = header;
        check(&shape)?;
        Ok(Self {
            core: RunCore::new(shape.clone()).map_err(|error| error.to_string())?,
            run,
            shape,
            actions: Vec::new(),
            events: 0,
            acted: 0,
            times: None,
            samples: None,
            requests: BTreeMap::new(),
            tokens: 0,
            failed: 0,
            losses: Vec::new(),
            interrupted_ns: 0,
            entered: HashMap::new(),
            spans: Vec::new(),
        })
    }

    /// Handles an event, and compares the digest of the actions with the recorded one.
    fn step(
        &mut self,
        line: u64,
        at: Nanoseconds,
        event: RunEvent,
        recorded: &str,
    ) -> std::result::Result<(), ReplayError> {
        if let RunEvent::Restarted { shape } = &event {
            check(shape).map_err(|cause| ReplayError::Invalid { line, cause })?;
        }
        self.before(at, &event);
        let what = kind(&event);
        let Self { core, actions, .. } = self;
        actions.clear();
        // Only an altered log makes a core panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| core.step(at, event, actions)));
        let mismatch = |actions| ReplayError::Mismatch { event: self.events, line, what, actions };
        let Ok(outcome) = outcome else { return Err(mismatch("the core panicked".into())) };
        if digest(&self.actions, outcome.as_ref().err()) != recorded {
            let text: String = format!("{:?}", self.actions).chars().take(400).collect();
            return Err(mismatch(outcome.err().map_or(text, |error| error.to_string())));
        }
        self.events += 1;
        self.after(at);
        Ok(())
    }

    /// Records an event.
    fn before(&mut self, at: Nanoseconds, event: &RunEvent) {
        let first = self.times.map_or(at, |(first, _)| first);
        self.times = Some((first, at));
        match event {
            RunEvent::Submit { sequence, prompt } => {
                let samples = self.samples.take().filter(|samples| samples.sequence == *sequence);
                let request = LoggedRequest {
                    sequence: *sequence,
                    prompt: prompt.clone(),
                    sampling: samples.map(|samples| samples.settings),
                    tokens: Vec::new(),
                    reason: None,
                };
                self.requests.entry(*sequence).or_insert(request);
            }
            RunEvent::Interrupted => {
                let at_s = seconds(first, at);
                self.losses.push(Loss { at_s, ..Loss::default() });
                self.interrupted_ns = at;
                self.entered.clear();
            }
            RunEvent::Restarted { .. } => {
                let after = seconds(self.interrupted_ns, at);
                self.losses
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|loss| loss.restarted_after_s = Some(after));
            }
            RunEvent::Collected { micro_batch, .. } => {
                if let Some((start_ns, batch)) = self.entered.remove(micro_batch) {
                    self.spans.push(span(&batch, start_ns, at));
                }
            }
            _ => {}
        }
    }

    /// Records the actions of an event.
    fn after(&mut self, at: Nanoseconds) {
        let after = seconds(self.interrupted_ns, at);
        self.acted += self.actions.len() as u64;
        for action in self.actions.drain(..) {
            match action {
                RunAction::Enter { micro_batch, .. } => {
                    self.entered.insert(micro_batch.id, (at, micro_batch));
                }
                RunAction::Emit { sequence, token } => {
                    self.tokens += 1;
                    self.requests
                        .get_mut(&sequence)
                        .into_iter()
                        .for_each(|request| request.tokens.push(token));
                    let loss = self.losses.last_mut().filter(|loss| loss.restarted_after_s.is_some());
                    loss.into_iter().for_each(|loss| {
                        loss.token_after_s.get_or_insert(after);
                    });
                }
                RunAction::Finish { sequence, finished } => {
                    let request = self.requests.get_mut(&sequence);
                    request.into_iter().for_each(|request| request.reason = Some(finished.reason));
                }
                RunAction::Fail { .. } => self.failed += 1,
                RunAction::Collect { .. } | RunAction::Stop => {}
            }
        }
    }

    fn end(self, end: LogEnd) -> Replay {
        let (first, last) = self.times.unwrap_or_default();
        let credits = self.spans.iter().map(|span| span.stage + 1).max().unwrap_or(0);
        let devices = (0..credits).map(|credit| format!("credit {credit}")).collect();
        Replay {
            run: self.run,
            events: self.events,
            actions: self.acted,
            duration_s: seconds(first, last),
            micro_batches: self.spans.len() as u64,
            tokens: self.tokens,
            failed: self.failed,
            losses: self.losses,
            end,
            shape: self.shape,
            requests: self.requests.into_values().collect(),
            trace: Trace::of(self.spans, devices),
        }
    }
}

impl LoggedRequest {
    /// Returns whether the tokens follow from the prompt, the sampling settings and the model.
    pub fn is_repeatable(&self) -> bool {
        self.sampling.is_some() && matches!(self.prompt.want, Want::Generate { .. })
    }
}

fn seconds(from: Nanoseconds, to: Nanoseconds) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// Returns the name of an event.
fn kind(event: &RunEvent) -> String {
    let text = format!("{event:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// Returns the span of a micro-batch. Two micro-batches with one credit do not overlap.
fn span(batch: &MicroBatch, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Span {
    let rows = batch.rows();
    let (queue, kind, micro_batch) = (QueueKind::Compute, SpanKind::Compute, Some(batch.id));
    Span {
        stage: batch.credit,
        queue,
        kind,
        segments: 0..1,
        micro_batch,
        rows,
        start_ns,
        end_ns,
        route: None,
    }
}
