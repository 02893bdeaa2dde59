//! What is timed: which segments stand for all, at which points.
//!
//! This module must not know devices at work: it lists.

use super::CalibrationOptions;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{Boundary, CompiledStage, Lowering, Segment};
use ragtag_hal::{Adapter, LinkedEntry, ModuleSource};
use ragtag_scheduler::SoloBatch;
use ragtag_scheduler::cost::{MicroBatch, ProfileIdentity, SegmentKey, TimePoint};
use std::ops::Range;

/// Positions at which decode is timed: a short context, and a long one.
const CONTEXTS: [u32; 2] = [32, 512];
/// Most sequences that are timed together; more are extrapolated.
const MAX_SEQUENCES: u32 = 64;
/// The smallest chunk that is timed, and the step from one to the next.
const CHUNKS: (u32, u32) = (16, 4);
/// Blocks are timed several at once, so that none finds its weights in a cache because there are so few of them: at least
/// so many bytes, at most so many blocks.
const WINDOW: (u64, usize) = (64 << 20, 8);
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
    shape: String,
    graph: ragtag_graph::Model,
}

impl Steps {
    pub(super) fn new(model: &Model, options: &CalibrationOptions) -> Result<Self> {
        let longest = model.hyperparameters().context.max(2);
        let doubled = std::iter::successors(Some(1u32), |rows| rows.checked_mul(2));
        let most = options.sequences.clamp(1, MAX_SEQUENCES).next_power_of_two();
        let decode_rows: Vec<u32> = doubled.take_while(|&rows| rows <= most).collect();
        let chunk = options.chunk.clamp(1, longest);
        let grown = std::iter::successors(Some(CHUNKS.0), |rows| rows.checked_mul(CHUNKS.1));
        let chunks: Vec<u32> = grown.take_while(|&rows| rows < chunk).chain([chunk]).collect();
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
            window,
            kinds,
            times_embedding: bytes(&segments[0]) <= MAX_TABLE_BYTES,
            batches,
            head_rows: decode_rows,
            embedding_rows,
            row_bytes: u64::from(model.hyperparameters().width) * 4,
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

    /// Bytes of one row of activations.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Everything that a complete profile has.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (SegmentKey, TimePoint)> + '_ {
        let middle = self.kinds.iter().flat_map(|&segment| {
            let key = self.keys[segment];
            self.batches.iter().map(move |batch| (key, key.point(&micro_batch(batch))))
        });
        let plain = |segment: usize, rows: u32| {
            (self.keys[segment], TimePoint { rows, sequences: rows, positions: 0.0 })
        };
        let embedding = self.embedding_rows().iter().map(move |&rows| plain(0, rows));
        let head = self.head_rows.iter().map(move |&rows| plain(self.head(), rows));
        middle.chain(embedding).chain(head)
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
