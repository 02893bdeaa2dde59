//! Faults of copies: which copies they affect, and how they change the commands.

use crate::command::{BufferRange, Command};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Copies that [`Faults::short_copies`](super::Faults::short_copies) affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShortCopies {
    /// Copies between buffers. Peer and import routes use them.
    Shared,
    /// Copies between buffers, and copies to and from the host.
    All,
}

impl ShortCopies {
    /// Shortens the affected copies by at most `alignment` bytes.
    pub(super) fn apply(self, commands: &mut [Command], alignment: u64) {
        let shorten = |range: &mut BufferRange| {
            let shorter = range.bytes.saturating_sub(1) / alignment * alignment;
            range.bytes = if shorter > 0 { shorter } else { range.bytes };
        };
        for command in commands {
            match command {
                Command::Copy { from, to } => [from, to].into_iter().for_each(shorten),
                Command::Upload { to: range, .. } | Command::Download { from: range, .. }
                    if self == ShortCopies::All =>
                {
                    shorten(range);
                }
                _ => {}
            }
        }
    }
}

/// A fault of some copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyFault {
    /// Kind of the fault.
    pub kind: CopyFaultKind,
    /// Copies that count.
    pub copies: FaultyCopies,
    /// Minimum size of the copies that count, in bytes.
    pub least_bytes: u64,
    /// Number of copies without the fault. Later copies have the fault.
    pub after: u64,
    /// Maximum number of copies with the fault. Later copies are right again. `None` means all later copies.
    pub most: Option<u64>,
}

/// Kind of a [`CopyFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyFaultKind {
    /// The last bytes at the destination, up to one word or the device's alignment for copies, are those of
    /// the start of the source. A copy that is no longer than these bytes stays right.
    Flipped,
    /// The destination keeps its previous contents.
    Stale,
    /// The copy is reported as completed after this delay.
    Late {
        /// Delay in microseconds.
        us: u64,
    },
    /// The copy is never reported as completed.
    Endless,
    /// The copy fails once all earlier work of its queue has completed.
    Failing,
    /// The device refuses the submission with [`Error::Refused`](crate::Error::Refused).
    Refused,
}

/// Copies that a [`CopyFault`] affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultyCopies {
    /// Copies between buffers. Peer and import routes use them.
    Shared,
    /// Copies from the host, which include those of weights.
    Uploads,
    /// Copies to the host.
    Downloads,
}

impl FaultyCopies {
    /// Returns the size of a copy of this kind. Returns `None` for other commands.
    fn bytes(self, command: &Command) -> Option<u64> {
        match (self, command) {
            (FaultyCopies::Shared, Command::Copy { from: range, .. })
            | (FaultyCopies::Uploads, Command::Upload { to: range, .. })
            | (FaultyCopies::Downloads, Command::Download { from: range, .. }) => Some(range.bytes),
            _ => None,
        }
    }
}

impl CopyFaultKind {
    /// Returns the time by which reports of completion are late.
    pub(super) fn delay(self) -> Duration {
        match self {
            CopyFaultKind::Late { us } => Duration::from_micros(us),
            CopyFaultKind::Endless => Duration::MAX,
            CopyFaultKind::Flipped
            | CopyFaultKind::Stale
            | CopyFaultKind::Failing
            | CopyFaultKind::Refused => Duration::ZERO,
        }
    }
}

impl CopyFault {
    pub(super) fn touches_timelines(&self) -> bool {
        !matches!(self.kind, CopyFaultKind::Flipped | CopyFaultKind::Stale | CopyFaultKind::Refused)
    }

    /// Counts the copies in `commands` and changes those that have the fault. Returns the fault if any copy
    /// has it. `counted` is the number of copies so far.
    pub(super) fn apply(
        &self,
        commands: &mut Vec<Command>,
        alignment: u64,
        counted: &mut u64,
    ) -> Option<CopyFaultKind> {
        let mut found = None;
        let mut changed = Vec::with_capacity(commands.len());
        for command in commands.drain(..) {
            let counts = self.copies.bytes(&command).is_some_and(|bytes| bytes >= self.least_bytes);
            let number = *counted;
            *counted += u64::from(counts);
            let before = number.checked_sub(self.after);
            let is_faulty = |before: u64| counts && self.most.is_none_or(|most| before < most);
            if !before.is_some_and(is_faulty) {
                changed.push(command);
                continue;
            }
            found = Some(self.kind);
            match self.kind {
                CopyFaultKind::Flipped => changed.extend(flipped(command, alignment.max(4))),
                CopyFaultKind::Stale => {}
                CopyFaultKind::Late { .. }
                | CopyFaultKind::Endless
                | CopyFaultKind::Failing
                | CopyFaultKind::Refused => changed.push(command),
            }
        }
        *commands = changed;
        found
    }
}

/// Splits a copy into a copy of its start, and a copy of its first bytes to the place of its last bytes. The
/// last bytes are at most `unit` bytes.
fn flipped(command: Command, unit: u64) -> Vec<Command> {
    let cut = |bytes: u64| bytes.saturating_sub(1) / unit * unit;
    let first = |range: BufferRange| BufferRange { bytes: cut(range.bytes), ..range };
    let source = |range: BufferRange| BufferRange { bytes: range.bytes - cut(range.bytes), ..range };
    let last = |range: BufferRange| BufferRange { offset: range.offset + cut(range.bytes), ..source(range) };
    match command {
        Command::Copy { from, to } if cut(from.bytes) > 0 => vec![
            Command::Copy { from: first(from), to: first(to) },
            Command::Copy { from: source(from), to: last(to) },
        ],
        Command::Upload { region, offset, to } if cut(to.bytes) > 0 => vec![
            Command::Upload { region, offset, to: first(to) },
            Command::Upload { region, offset, to: last(to) },
        ],
        Command::Download { from, region, offset } if cut(from.bytes) > 0 => vec![
            Command::Download { from: first(from), region, offset },
            Command::Download { from: source(from), region, offset: offset + cut(from.bytes) },
        ],
        other => vec![other],
    }
}
