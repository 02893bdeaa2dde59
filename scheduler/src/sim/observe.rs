//! Observations of a simulation: busy times, waiting times and token times. This module only accumulates
//! values, and does not depend on how they are used.

use crate::core::{Nanoseconds, SequenceId};
use crate::trace::Computed;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Busy time of a resource. Work that overlaps in time counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Total busy time.
    pub busy_ns: Nanoseconds,
    /// Start of the first work.
    pub first_ns: Option<Nanoseconds>,
    /// End of the last work.
    pub last_ns: Nanoseconds,
    active: u32,
    since_ns: Nanoseconds,
}

impl Work {
    pub(super) fn start(&mut self, now: Nanoseconds) {
        if self.active == 0 {
            self.since_ns = now;
            self.first_ns.get_or_insert(now);
        }
        self.active += 1;
    }

    pub(super) fn end(&mut self, now: Nanoseconds) {
        self.active -= 1;
        if self.active == 0 {
            self.busy_ns += now - self.since_ns;
            self.last_ns = now;
        }
    }

    /// Returns the idle fraction of the period from the start of the first work to the end of the last work.
    pub fn bubble(&self) -> f64 {
        let span_ns = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        if span_ns == 0 { 0.0 } else { 1.0 - self.busy_ns as f64 / span_ns as f64 }
    }
}

/// An integer value that changes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Largest value that lasted longer than 0 ns.
    pub max: u32,
    /// Integral of the value over time.
    area: u128,
    value: u32,
    since_ns: Nanoseconds,
}

impl Level {
    pub(super) fn set(&mut self, now: Nanoseconds, value: u32) {
        if now > self.since_ns {
            self.max = self.max.max(self.value);
            self.area += u128::from(now - self.since_ns) * u128::from(self.value);
            self.since_ns = now;
        }
        self.value = value;
    }

    pub(super) fn add(&mut self, now: Nanoseconds) {
        self.set(now, self.value + 1);
    }

    pub(super) fn take(&mut self, now: Nanoseconds) {
        self.set(now, self.value.saturating_sub(1));
    }

    /// Returns the mean over the `over_ns` nanoseconds before the latest change.
    pub fn mean(&self, over_ns: Nanoseconds) -> f64 {
        self.area as f64 / over_ns.max(1) as f64
    }
}

/// Observations of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageWork {
    /// Busy times of the stage's queues, in the order of [`ragtag_hal::QueueKind::index`].
    pub queues: [Work; 3],
    /// Sums over micro-batches with prompt rows.
    pub prefill: Computed,
    /// Sums over micro-batches that contain only decode steps.
    pub decode: Computed,
    /// Number of micro-batches whose rows have begun to arrive on the device but whose computation has not
    /// ended.
    pub waiting: Level,
}

/// Observations of an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeWork {
    /// Busy time of copies into and out of the edge's ring.
    pub work: Work,
    /// Number of transferred micro-batches.
    pub crossings: u64,
    /// Total bytes of the transferred micro-batches.
    pub bytes: u64,
}

/// Times of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceWork {
    /// Time of submission.
    pub arrived_ns: Nanoseconds,
    /// Time of the first token.
    pub first_token_ns: Option<Nanoseconds>,
    /// Time of the latest token.
    pub last_token_ns: Nanoseconds,
    /// Time at which the sequence ended.
    pub ended_ns: Option<Nanoseconds>,
}

/// Use of the KV cache. Only a checked run counts these events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheWork {
    /// Number of times that a sequence took further blocks.
    pub grown: u64,
    /// Number of times that a sequence began after a prefix in the cache.
    pub reused: u64,
    /// Number of those that took over a KV ring.
    pub rings: u64,
    /// Number of cached blocks that were given up.
    pub evicted: u64,
    /// Number of preemptions.
    pub preempted: u64,
    /// Number of sequences that paused.
    pub paused: u64,
}

impl AddAssign for CacheWork {
    fn add_assign(&mut self, other: Self) {
        let Self { grown, reused, rings, evicted, preempted, paused } = other;
        self.grown += grown;
        self.reused += reused;
        self.rings += rings;
        self.evicted += evicted;
        self.preempted += preempted;
        self.paused += paused;
    }
}

/// All observations of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observations {
    /// Observations of each stage.
    pub stages: Vec<StageWork>,
    /// Observations of each edge. There is one edge fewer than stages.
    pub edges: Vec<EdgeWork>,
    /// Busy time of each shared link.
    pub shared_busy_ns: Vec<Nanoseconds>,
    /// Times of each submitted sequence.
    pub sequences: BTreeMap<SequenceId, SequenceWork>,
    /// Times between consecutive tokens of a sequence, for all sequences.
    pub between_tokens_ns: Vec<Nanoseconds>,
    /// Number of sequences that wait for cache blocks.
    pub waiting: Level,
    /// Use of the KV cache.
    #[serde(default)]
    pub cache: CacheWork,
}

impl Observations {
    pub(super) fn new(stages: usize, shared_links: usize) -> Self {
        Self {
            stages: vec![StageWork::default(); stages],
            edges: vec![EdgeWork::default(); stages - 1],
            shared_busy_ns: vec![0; shared_links],
            ..Self::default()
        }
    }

    pub(super) fn arrived(&mut self, now: Nanoseconds, sequence: SequenceId) {
        self.sequences.entry(sequence).or_default().arrived_ns = now;
    }

    pub(super) fn token(&mut self, now: Nanoseconds, sequence: SequenceId) {
        let times = self.sequences.entry(sequence).or_default();
        match times.first_token_ns {
            None => times.first_token_ns = Some(now),
            Some(_) => self.between_tokens_ns.push(now - times.last_token_ns),
        }
        times.last_token_ns = now;
    }

    pub(super) fn ended(&mut self, now: Nanoseconds, sequence: SequenceId) {
        self.sequences.entry(sequence).or_default().ended_ns = Some(now);
    }

    /// Extends all levels to `now`, the end of the run.
    pub(super) fn close(&mut self, now: Nanoseconds) {
        let levels = self.stages.iter_mut().map(|s| &mut s.waiting).chain([&mut self.waiting]);
        levels.for_each(|level| level.set(now, level.value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_at_once_counts_once() {
        let mut work = Work::default();
        work.start(10);
        work.start(12);
        work.end(15);
        work.end(20);
        work.start(30);
        work.end(40);
        assert_eq!((work.busy_ns, work.first_ns, work.last_ns), (20, Some(10), 40));
        assert!((work.bubble() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(Work::default().bubble(), 0.0);
    }

    #[test]
    fn a_level_has_a_mean_over_time_and_a_largest_value() {
        let mut level = Level::default();
        level.add(10);
        level.add(20);
        // This value lasts for 0 ns, so it does not count.
        level.add(30);
        level.take(30);
        level.take(40);
        level.take(60);
        level.set(100, 0);
        assert_eq!((level.max, level.mean(100)), (2, (10.0 + 2.0 * 20.0 + 20.0) / 100.0));
    }
}
