//! What is timed: which segments stand for all, at which points.
//!
//! This module must not know devices at work: it lists.

use super::CalibrationOptions;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{Boundary, CompiledStage, Lowering, Segment, buckets};
use ragtag_hal::{Adapter, LinkedEntry, ModuleSource};
use ragtag_scheduler::SoloBatch;
use ragtag_scheduler::cost::{MicroBatch, Profile, ProfileIdentity, SegmentKey, TimePoint};
use std::ops::Range;

/// Positions at which decode is timed: a short context, and a long one.
const CONTEXTS: [u32; 2] = [32, 512];
/// Most sequences that are timed together; more are extrapolated.
const MAX_SEQUENCES: u32 = 64;
/// The smallest chunk that is timed, unless the largest is smaller.
const SMALLEST_CHUNK: u32 = 16;
/// A chunk is timed unless one of half its rows or fewer takes the window longer than this: what keeps a device busy for so
/// long takes time by its operations, and longer chunks as much more as they have more of them.
const LONG_US: f64 = 50e3;
/// Blocks are timed several at once, so that none finds its weights in a cache because there are so few of them: at least
/// so many bytes, which is more than the last caches of most servers hold, at most so many blocks.
const WINDOW: (u64, usize) = (512 << 20, 8);
/// An embedding table beyond this is not loaded to time it: looking rows up takes next to nothing.
const MAX_TABLE_BYTES: u64 = 256 << 20;

/// What is timed of one model.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) lowering: Lowering,
    pub(super) keys: Vec<SegmentKey>,
    /// Consecutive blocks that are timed together.
    pub(super) window: Range<usize>,
    /// For each kind of segment between embedding and head the first that is of it.
    pub(super) kinds: Vec<usize>,
    times_embedding: bool,
    /// What segments that attend are given.
    pub(super) batches: Vec<SoloBatch>,
    /// Rows that the head is given.
    pub(super) head_rows: Vec<u32>,
    /// Rows that the embedding is given.
    embedding_rows: Vec<u32>,
    row_bytes: u64,
    window_bytes: u64,
    shape: String,
    graph: ragtag_graph::Model,
}

impl Steps {
    pub(super) fn new(model: &Model, options: &CalibrationOptions) -> Result<Self> {
        let longest = model.hyperparameters().context.max(2);
        let most = options.sequences.clamp(1, MAX_SEQUENCES).next_power_of_two();
        let decode_rows = ends_of_buckets(most);
        let chunk = options.chunk.clamp(1, longest);
        let is_timed = |&rows: &u32| rows >= SMALLEST_CHUNK || rows == chunk;
        let chunks: Vec<u32> = buckets(chunk).into_iter().filter(is_timed).collect();
        let mut contexts = CONTEXTS.map(|positions| positions.min(longest)).to_vec();
        contexts.dedup();
        let context = longest.min(CONTEXTS[1]).max(chunk);

        let mut batches = Vec::new();
        for &rows in &decode_rows {
            batches.extend(contexts.iter().map(|&positions| SoloBatch::decode(rows, positions)));
        }
        for &rows in chunks.iter().filter(|&&rows| rows > 1) {
            batches.push(SoloBatch::chunk(rows, 0));
            if context > rows {
                batches.push(SoloBatch::chunk(rows, context - rows));
            }
        }
        let mut embedding_rows = [&decode_rows[..], &chunks].concat();
        embedding_rows.sort_unstable();
        embedding_rows.dedup();
        let lowering = Lowering {
            activations: options.activations,
            kv: options.kv,
            context,
            sequences: most,
            chunk: chunk.max(most),
            logit_rows: most,
            boundary: Boundary::F32,
        };
        let as_error = |cause| Error::Model { name: model.name().into(), cause };
        let segments = model.graph().segments(&lowering).map_err(as_error)?;
        let keys: Vec<_> = segments.iter().map(SegmentKey::from).collect();
        let window = window(&segments);
        let middle = 1..segments.len().saturating_sub(1);
        let kinds = middle.clone().filter(|&s| (1..s).all(|before| keys[before] != keys[s])).collect();
        Ok(Self {
            lowering,
            kinds,
            times_embedding: bytes(&segments[0]) <= MAX_TABLE_BYTES,
            batches,
            head_rows: decode_rows,
            embedding_rows,
            row_bytes: u64::from(model.hyperparameters().width) * 4,
            window_bytes: segments[window.clone()].iter().map(bytes).sum(),
            window,
            shape: shape(model),
            graph: model.graph().clone(),
            keys,
        })
    }

    /// Compiles segments for a device.
    pub(super) fn compile(&self, segments: Range<usize>, adapter: &Adapter) -> Result<CompiledStage> {
        let compiled = ragtag_graph::compile(&self.graph, segments, &self.lowering, &adapter.caps);
        compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })
    }

    /// What the embedding is given; nothing if it is not timed.
    pub(super) fn embedding_rows(&self) -> &[u32] {
        if self.times_embedding { &self.embedding_rows } else { &[] }
    }

    /// The head.
    pub(super) fn head(&self) -> usize {
        self.keys.len() - 1
    }

    /// Whether all blocks of the window are of one kind.
    pub(super) fn is_uniform(&self) -> bool {
        self.window.clone().all(|segment| self.keys[segment] == self.keys[self.window.start])
    }

    /// Bytes that the blocks of the window have, at most as many as a window needs.
    pub(super) fn sweep_bytes(&self) -> usize {
        self.window_bytes.min(WINDOW.0) as usize
    }

    /// Bytes of one row of activations.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Whether a profile has everything that is timed.
    pub(super) fn are_all_in(&self, profile: &Profile) -> bool {
        let has = |segment: usize, at: &TimePoint| profile.has(&self.keys[segment], at);
        let plain = |rows: u32| TimePoint { rows, sequences: rows, positions: 0.0 };
        let mut patience = Patience::default();
        let batches = self.batches.iter().filter(|batch| {
            let wanted = patience.allows(batch);
            patience.note(batch, self.window_us(profile, batch));
            wanted
        });
        let points = |batch: &SoloBatch, segment: usize| self.keys[segment].point(&micro_batch(batch));
        let middle = |batch: &SoloBatch| self.kinds.iter().all(|&kind| has(kind, &points(batch, kind)));
        self.embedding_rows().iter().all(|&rows| has(0, &plain(rows)))
            && self.head_rows.iter().all(|&rows| has(self.head(), &plain(rows)))
            && batches.into_iter().all(middle)
    }

    /// What the blocks of the window take together by a profile, in microseconds; without those that it does not know.
    fn window_us(&self, profile: &Profile, batch: &SoloBatch) -> f64 {
        let time = |segment: usize| profile.time(&self.keys[segment], &micro_batch(batch));
        self.window.clone().filter_map(time).map(|time| time.value).sum()
    }

    /// How many things are timed on a device.
    pub(super) fn count(&self) -> u64 {
        let singles = if self.is_uniform() { self.kinds.len().saturating_sub(1) } else { self.kinds.len() };
        ((singles + 1) * self.batches.len() + self.embedding_rows().len() + self.head_rows.len() + 1) as u64
    }

    /// What a profile of this model on a device holds for.
    pub(super) fn identity(&self, adapter: &Adapter, together: u32) -> Result<ProfileIdentity> {
        Ok(ProfileIdentity {
            device: adapter.label(),
            name: adapter.name.clone(),
            driver: adapter.driver.clone(),
            units: adapter.caps.parallel_units,
            together,
            kernels: self.kernels(adapter)?,
            shape: self.shape.clone(),
            activations: self.lowering.activations,
            kv: self.lowering.kv,
        })
    }

    /// Digest of the kernels that run: their variants, their texts where there are any, and the version of the program that
    /// has those of the CPU in it.
    fn kernels(&self, adapter: &Adapter) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
        hasher.update(format!("{:?}", adapter.caps.features).as_bytes());
        let first = self.window.start.min(self.head());
        for segments in [0..first + 1, self.head()..self.keys.len()] {
            let compiled = self.compile(segments, adapter)?;
            for variant in &compiled.variants {
                hasher.update(variant.as_bytes());
            }
            match &compiled.module.source {
                ModuleSource::Host(_) => {}
                ModuleSource::Text { entries, .. } => {
                    for entry in entries {
                        hasher.update(entry.text.as_bytes());
                    }
                }
                ModuleSource::Linked { entries, .. } => {
                    hasher.update(format!("{:?}", adapter.caps.gemm).as_bytes());
                    for entry in entries {
                        let LinkedEntry::Text(text) = entry else { continue };
                        hasher.update(text.text.as_bytes());
                    }
                }
                ModuleSource::SpirV { binary, .. } => {
                    hasher.update(binary);
                }
            }
        }
        Ok(hasher.finalize().to_hex()[..32].to_owned())
    }
}

/// Which chunks are still worth timing.
#[derive(Debug)]
pub(super) struct Patience {
    most_rows: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { most_rows: u32::MAX }
    }
}

impl Patience {
    /// Whether a batch is to be timed.
    pub(super) fn allows(&self, batch: &SoloBatch) -> bool {
        batch.rows_each <= self.most_rows
    }

    /// The window took so long for a batch, in microseconds.
    pub(super) fn note(&mut self, batch: &SoloBatch, us: f64) {
        if us > LONG_US && batch.rows_each > 1 {
            self.most_rows = self.most_rows.min(batch.rows_each.saturating_mul(2));
        }
    }
}

/// Numbers of rows up to `most`, a power of two: the first and the last of each bucket, for programs change their kernels
/// from one bucket to the next, and times take a step there.
fn ends_of_buckets(most: u32) -> Vec<u32> {
    let buckets = buckets(most);
    let firsts = buckets.iter().take(buckets.len() - 1).map(|rows| rows + 1);
    let mut ends: Vec<u32> = firsts.chain(buckets.iter().copied()).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// A solo batch as the cost model sees it.
pub(super) fn micro_batch(batch: &SoloBatch) -> MicroBatch {
    MicroBatch {
        rows: batch.sequences * batch.rows_each,
        logit_rows: if batch.logits { batch.sequences } else { 0 },
        sequences: batch.sequences,
        positions: batch.positions(),
    }
}

/// The first blocks, as many as it takes.
fn window(segments: &[Segment]) -> Range<usize> {
    let most = segments.len().saturating_sub(2);
    let first = segments.get(1).map_or(1, bytes).max(1);
    let wanted = WINDOW.0.div_ceil(first).clamp(2, WINDOW.1 as u64) as usize;
    1..1 + wanted.min(most)
}

fn bytes(segment: &Segment) -> u64 {
    segment.tensors.iter().map(|tensor| tensor.resident_bytes).sum()
}

/// Digest of all that the time of a model's segments depends on.
fn shape(model: &Model) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{:?}", model.hyperparameters()).as_bytes());
    for tensor in model.graph().weights().tensors() {
        hasher.update(format!("{} {:?} {:?};", tensor.name, tensor.tensor_type, tensor.shape).as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_each_bucket_are_timed() {
        assert_eq!(ends_of_buckets(1), [1]);
        assert_eq!(ends_of_buckets(2), [1, 2]);
        assert_eq!(ends_of_buckets(16), [1, 2, 3, 4, 5, 8, 9, 16]);
    }

    #[test]
    fn chunks_beyond_a_long_one_are_spared() {
        let mut patience = Patience::default();
        let chunk = |rows| SoloBatch::chunk(rows, 0);
        patience.note(&SoloBatch::decode(64, 32), 2.0 * LONG_US);
        patience.note(&chunk(16), LONG_US);
        assert!(patience.allows(&chunk(1024)), "no chunk was long so far");
        patience.note(&chunk(32), 1.5 * LONG_US);
        patience.note(&chunk(64), 3.0 * LONG_US);
        assert!(patience.allows(&SoloBatch::chunk(64, 480)) && !patience.allows(&chunk(65)));
    }
}
