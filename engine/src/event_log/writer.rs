//! Writes a log. The coordinator's thread formats the lines, and another thread writes them, so a slow disk does not
//! delay the run.

use super::{
    AFTER_CHECK, CHECK, Chain, EVENT_LOG_BYTES, Header, LINE_BYTES, LogEnd, LoggedRun, Samples, VERSION,
    digest,
};
use crate::error::{Error, Result};
use ragtag_planner::plan::Plan;
use ragtag_scheduler::core::{Nanoseconds, RunAction, RunEvent, RunShape, SequenceId};
use ragtag_scheduler::{Error as RunError, EventSink, Sampling};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Maximum number of bytes that wait for the disk. If more wait, the log ends.
const QUEUED_BYTES: usize = 64 << 20;

/// Bytes at the end of a log that its last line may need.
const LAST_LINE_BYTES: u64 = 128;

/// State that both threads share.
#[derive(Debug, Default)]
struct Shared {
    queued_bytes: AtomicUsize,
    is_behind: AtomicBool,
}

/// A log that is being written. Dropping it writes the rest.
#[derive(Debug)]
pub(crate) struct EventLog {
    run: LoggedRun,
    limit_bytes: u64,
    /// The line that is being formatted.
    line: Vec<u8>,
    /// `None` once the log has ended.
    lines: Option<Sender<Vec<u8>>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl EventLog {
    /// Creates the file of a log, which only its owner can read. Replaces an existing file.
    pub(crate) fn create(path: &Path, plan: &Plan) -> Result<Self> {
        Self::with_limit(path, plan, EVENT_LOG_BYTES)
    }

    /// Creates the file of a log of at most `limit_bytes`.
    pub(super) fn with_limit(path: &Path, plan: &Plan, limit_bytes: u64) -> Result<Self> {
        let failed = |cause| Error::File { action: "write", path: path.into(), cause };
        let file = open(path).map_err(failed)?;
        let digest = blake3::hash(&serde_json::to_vec(plan).unwrap_or_default());
        let run = LoggedRun {
            ragtag: env!("CARGO_PKG_VERSION").into(),
            model: plan.model.name.clone(),
            fingerprint: plan.model.digest.clone(),
            plan: format!("blake3:{}", &digest.to_hex()[..32]),
            split: plan.split().to_string(),
            activations: plan.activations,
            kv: plan.kv,
        };
        let (sender, receiver) = channel();
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            file: BufWriter::new(file),
            path: path.into(),
            chain: Chain::new(),
            left_bytes: limit_bytes,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("ragtag events".into());
        let thread = thread.spawn(move || writer.write_all(&receiver)).map_err(failed)?;
        Ok(Self { run, limit_bytes, line: Vec::new(), lines: Some(sender), shared, thread: Some(thread) })
    }

    /// Adds a value to the line. Ends the log if the value cannot be written as JSON.
    fn add(&mut self, value: &impl Serialize) {
        if serde_json::to_writer(&mut self.line, value).is_err() {
            self.end();
        }
    }

    /// Hands the line, which lacks its last brace, to the writer.
    fn send(&mut self) {
        let (line, shared) = (std::mem::take(&mut self.line), &self.shared);
        let length = line.len();
        let queued = shared.queued_bytes.fetch_add(length, Ordering::Relaxed).saturating_add(length);
        if length > LINE_BYTES - CHECK.len() - AFTER_CHECK.len() - 16 || queued > QUEUED_BYTES {
            return self.end();
        }
        // The writer ends at the limit.
        let is_taken = self.lines.as_ref().is_some_and(|lines| lines.send(line).is_ok());
        self.lines.take_if(|_| !is_taken);
    }

    /// Ends the log although the run goes on.
    fn end(&mut self) {
        self.shared.is_behind.store(true, Ordering::Relaxed);
        self.lines = None;
    }
}

impl EventSink for EventLog {
    fn started(&mut self, shape: &RunShape) {
        let (run, shape) = (self.run.clone(), shape.clone());
        self.add(&Header { ragtag_events: VERSION, run, limit_bytes: self.limit_bytes, shape });
        self.line.pop();
        self.send();
    }

    fn samples(&mut self, sequence: SequenceId, settings: Sampling) {
        if self.lines.is_some() {
            self.line.extend(b"{\"samples\":");
            self.add(&Samples { sequence, settings });
            self.send();
        }
    }

    fn event(&mut self, now: Nanoseconds, event: &RunEvent) {
        if self.lines.is_some() {
            let _ = write!(self.line, "{{\"at\":{now},\"event\":");
            self.add(event);
        }
    }

    fn actions(&mut self, actions: &[RunAction], error: Option<&RunError>) {
        if self.lines.is_some() {
            let _ = write!(self.line, ",\"actions\":\"{}\"", digest(actions, error));
            self.send();
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // A file that was there before keeps its mode.
    #[cfg(unix)]
    if file.metadata()?.is_file() {
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    Ok(file)
}

/// The writing thread's state.
struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    chain: Chain,
    /// Bytes that the log may still take.
    left_bytes: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn write_all(mut self, lines: &Receiver<Vec<u8>>) {
        if let Err(cause) = self.write_lines(lines) {
            let path = self.path.display();
            tracing::warn!(%cause, "cannot write {path}; the log of events ends");
        }
    }

    fn write_lines(&mut self, lines: &Receiver<Vec<u8>>) -> io::Result<()> {
        let mut end = None;
        while end.is_none() {
            end = match lines.try_recv() {
                Ok(line) => self.write(&line)?,
                // Others can read the log while the run waits.
                Err(_) => {
                    self.file.flush()?;
                    match lines.recv() {
                        Ok(line) => self.write(&line)?,
                        Err(_) if self.shared.is_behind.load(Ordering::Relaxed) => Some(LogEnd::Behind),
                        Err(_) => Some(LogEnd::Stopped),
                    }
                }
            };
        }
        let end = end.unwrap_or(LogEnd::Stopped);
        if end != LogEnd::Stopped {
            tracing::warn!(?end, "the log of events ends before the run: {}", self.path.display());
        }
        let mut line = b"{\"end\":".to_vec();
        serde_json::to_writer(&mut line, &end)?;
        self.put(&line)?;
        self.file.flush()
    }

    /// Writes a line, unless the log would exceed its limit.
    fn write(&mut self, line: &[u8]) -> io::Result<Option<LogEnd>> {
        self.shared.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
        let bytes = (line.len() + CHECK.len() + 16 + AFTER_CHECK.len()) as u64;
        if bytes + LAST_LINE_BYTES > self.left_bytes {
            return Ok(Some(LogEnd::Limit));
        }
        self.left_bytes -= bytes;
        self.put(line).map(|()| None)
    }

    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let check = self.chain.next(line);
        [line, CHECK, check.as_bytes(), AFTER_CHECK]
            .into_iter()
            .try_for_each(|part| self.file.write_all(part))
    }
}
