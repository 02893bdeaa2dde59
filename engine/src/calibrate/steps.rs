//! List of measurements: the representative segments to time, and the micro-batches to time them with. This
//! module only lists the measurements. `measure` runs them.

use super::options::{CalibrationOptions, is_processor};
use crate::calibrate::solo::SoloBatch;
use crate::defaults::MAX_CHUNK;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{CompiledStage, Lowering, Segment, WireType, buckets};
use ragtag_hal::Adapter;
use ragtag_planner::cost::{BatchShape, Profile, ProfileIdentity, SegmentKey, TimePoint, TimedFor};
use std::ops::Range;

/// Context lengths at which decode is timed, in cached positions: a short and a long context.
const CONTEXTS: [u32; 2] = [32, 512];
/// Maximum length of the far context, in positions. In the far context, calibration times a decode step of a
/// single sequence, and chunks at the end of the context. The model's context and [`MAX_FAR_BYTES`] also
/// limit the length.
const FAR: u32 = 8192;
/// Maximum size in bytes of the far context's KV cache for all timed blocks.
const MAX_FAR_BYTES: u64 = 512 << 20;
/// Maximum number of sequences in a timed decode step. Times for more sequences are extrapolated.
const MAX_SEQUENCES: u32 = 64;
/// Minimum size in tokens of a timed chunk, unless the largest chunk is smaller.
const SMALLEST_CHUNK: u32 = 16;
/// Maximum prefill chunk, in tokens, of the stages in calibration pipelines. The KV cache of every sequence
/// must have room for a chunk of this size.
const MAX_SHARED_CHUNK: u32 = 1024;
/// Chunk sizes in tokens that calibration times first on a GPU, most important size first. It times all other
/// sizes after these, largest first.
const WORTH: [u32; 6] = [512, 2048, 4096, 128, 1024, 256];
/// The same for a CPU, where long chunks are never much faster than short ones.
const WORTH_ON_CPU: [u32; 6] = [512, 128, 256, 1024, 2048, 4096];
/// Maximum number of rows of the far-context chunk that is timed before the less important chunks.
const FAR_ROWS: u32 = 512;
/// Maximum expected time of a timed chunk, in microseconds. A longer chunk is compute-bound, so its time can
/// be predicted from shorter chunks.
const LONGEST_US: f64 = 400e3;
/// Target total size in bytes, and maximum number, of the blocks that are timed together. The size exceeds
/// the caches of GPUs. A CPU's caches are swept.
const WINDOW: (u64, usize) = (512 << 20, 8);
/// Target size in bytes of the blocks whose decode steps a quick calibration times on a CPU.
const QUICK_WINDOW_BYTES: u64 = 256 << 20;
/// Maximum size in bytes of a timed embedding table. A larger table is not timed, because lookups take almost
/// no time.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Maximum size in bytes of a head that a quick calibration times.
const MAX_QUICK_HEAD_BYTES: u64 = 1 << 30;

/// List of measurements for one model.
#[derive(Debug)]
pub(super) struct Steps {
    /// Lowering for calibration pipelines.
    pub(super) lowering: Lowering,
    /// Lowering for the stages on which decode and the head are timed.
    decode_lowering: Lowering,
    /// Lowering for the stages on which chunks and far-context decode are timed. These stages hold a single
    /// sequence.
    prefill: Lowering,
    pub(super) keys: Vec<SegmentKey>,
    /// Consecutive blocks that are timed together.
    pub(super) window: Range<usize>,
    /// Index of the first segment of each kind between embedding and head.
    pub(super) kinds: Vec<usize>,
    times_embedding: bool,
    /// Decode steps to time, in order of importance.
    pub(super) decode: Vec<SoloBatch>,
    /// Chunks to time on a GPU, and a decode step in the far context, in order of importance.
    chunks: Vec<SoloBatch>,
    /// The same batches in the order for a CPU.
    chunks_on_cpu: Vec<SoloBatch>,
    /// Row counts at which the head is timed.
    pub(super) head_rows: Vec<u32>,
    /// Row counts at which the embedding is timed.
    embedding_rows: Vec<u32>,
    timed_for: TimedFor,
    row_bytes: u64,
    window_bytes: u64,
    /// Size in bytes of each segment's weights.
    segment_bytes: Vec<u64>,
    /// Whether the calibration has a time limit.
    is_quick: bool,
    shape: String,
    graph: ragtag_graph::Model,
}

impl Steps {
    pub(super) fn new(model: &Model, options: &CalibrationOptions) -> Result<Self> {
        let longest = model.hyperparameters().context.max(2);
        let timed_for = TimedFor {
            chunk: options.chunk.clamp(1, longest),
            sequences: options.sequences.clamp(1, MAX_SEQUENCES).next_power_of_two(),
        };
        let TimedFor { chunk, sequences: most } = timed_for;
        let lowering = |context: u32, sequences: u32, chunk: u32| Lowering {
            activations: options.activations,
            kv: options.kv,
            context,
            sequences,
            kv_blocks: None,
            chunk: chunk.max(sequences),
            logit_rows: sequences,
            wire_type: WireType::F32,
        };
        let shared_chunk = chunk.min(MAX_SHARED_CHUNK);
        let shared = lowering(longest.min(CONTEXTS[1]).max(shared_chunk), most, shared_chunk);
        let as_error = |cause| Error::Model { name: model.name().into(), cause };
        let segments = model.graph().segments(&shared).map_err(as_error)?;
        let keys: Vec<_> = segments.iter().map(SegmentKey::from).collect();
        let window = window(&segments);
        let far = far(&segments[window.clone()], longest).max(chunk).max(longest.min(CONTEXTS[1]));

        let decode_rows = ends_of_buckets(most);
        let mut embedding_rows = [&decode_rows[..], &chunks(chunk)].concat();
        embedding_rows.sort_unstable();
        embedding_rows.dedup();
        let middle = 1..segments.len().saturating_sub(1);
        let kinds = middle.clone().filter(|&s| (1..s).all(|before| keys[before] != keys[s])).collect();
        Ok(Self {
            lowering: shared,
            decode_lowering: lowering(longest.min(CONTEXTS[1]), most, chunk.min(SMALLEST_CHUNK)),
            prefill: lowering(far, 1, chunk.max(most)),
            kinds,
            times_embedding: bytes(&segments[0]) <= MAX_TABLE_BYTES,
            decode: decode_batches(&decode_rows, longest),
            chunks: chunk_batches(chunk, far, longest.min(CONTEXTS[1]), &WORTH),
            chunks_on_cpu: chunk_batches(chunk, far, longest.min(CONTEXTS[1]), &WORTH_ON_CPU),
            head_rows: decode_rows,
            embedding_rows,
            timed_for,
            row_bytes: u64::from(model.hyperparameters().width) * 4,
            window_bytes: segments[window.clone()].iter().map(bytes).sum(),
            segment_bytes: segments.iter().map(bytes).collect(),
            is_quick: options.limit.is_some(),
            window,
            shape: shape(model),
            graph: model.graph().clone(),
            keys,
        })
    }

    /// Returns the segments between embedding and head.
    pub(super) fn blocks(&self) -> Range<usize> {
        1..self.segment_bytes.len().saturating_sub(1).max(1)
    }

    /// Returns the size of all weights, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.segment_bytes.iter().sum()
    }

    /// Compiles segments for a stage of a calibration pipeline.
    pub(super) fn compile(&self, segments: Range<usize>, adapter: &Adapter) -> Result<CompiledStage> {
        self.compile_for(&self.lowering, segments, adapter)
    }

    /// Compiles segments for decode steps.
    pub(super) fn compile_decode(&self, segments: Range<usize>, adapter: &Adapter) -> Result<CompiledStage> {
        self.compile_for(&self.decode_lowering, segments, adapter)
    }

    /// Compiles segments for long chunks and for far-context decode of a single sequence.
    pub(super) fn compile_prefill(&self, segments: Range<usize>, adapter: &Adapter) -> Result<CompiledStage> {
        self.compile_for(&self.prefill, segments, adapter)
    }

    fn compile_for(
        &self,
        lowering: &Lowering,
        segments: Range<usize>,
        adapter: &Adapter,
    ) -> Result<CompiledStage> {
        let compiled = ragtag_graph::compile(&self.graph, segments, lowering, &adapter.caps);
        compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })
    }

    /// Returns the blocks on which decode steps are timed. On a CPU, a quick calibration uses fewer blocks,
    /// because the CPU's compute threads must also copy the weights.
    pub(super) fn decode_window(&self, adapter: &Adapter) -> Range<usize> {
        let Range { start, end } = self.window.clone();
        if !self.is_quick || !is_processor(adapter) {
            return start..end;
        }
        let each = (self.window_bytes / (end - start).max(1) as u64).max(1);
        start..end.min(start + QUICK_WINDOW_BYTES.div_ceil(each).max(1) as usize)
    }

    /// Returns the blocks on which chunks are timed. On a CPU, a quick calibration uses only one block,
    /// because even small chunks are compute-bound there.
    pub(super) fn chunk_window(&self, adapter: &Adapter) -> Range<usize> {
        let Range { start, end } = self.window.clone();
        if self.is_quick && is_processor(adapter) { start..end.min(start + 1) } else { start..end }
    }

    /// Returns the chunks to time on a device, and a decode step in the far context, in order of importance.
    pub(super) fn chunks(&self, adapter: &Adapter) -> &[SoloBatch] {
        if is_processor(adapter) { &self.chunks_on_cpu } else { &self.chunks }
    }

    /// Returns whether calibration times the head. A quick calibration skips a head larger than
    /// [`MAX_QUICK_HEAD_BYTES`].
    pub(super) fn times_head(&self) -> bool {
        !self.is_quick || self.segment_bytes[self.head()] <= MAX_QUICK_HEAD_BYTES
    }

    /// Returns the largest chunk and the number of sequences that the profile must cover.
    pub(super) fn timed_for(&self) -> TimedFor {
        self.timed_for
    }

    /// Returns the row counts at which the embedding is timed, or an empty slice if it is not timed.
    pub(super) fn embedding_rows(&self) -> &[u32] {
        if self.times_embedding { &self.embedding_rows } else { &[] }
    }

    /// Returns the index of the head segment.
    pub(super) fn head(&self) -> usize {
        self.keys.len() - 1
    }

    /// Returns whether all blocks of the window are of the same kind.
    pub(super) fn is_uniform(&self) -> bool {
        self.window.clone().all(|segment| self.keys[segment] == self.keys[self.window.start])
    }

    /// Returns the size in bytes of the weights that a run reads between two executions of `segments`: all
    /// others but the embedding table. A run reads only a few rows of that table.
    pub(super) fn bytes_beside(&self, segments: &Range<usize>) -> u64 {
        let timed: u64 = self.segment_bytes[segments.clone()].iter().sum();
        self.segment_bytes.iter().skip(1).sum::<u64>().saturating_sub(timed)
    }

    /// Returns the size of a row of f32 activations, in bytes.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Returns whether a cached profile makes the measurements unnecessary. A quick calibration accepts a
    /// profile that was made for at least the requested chunk and number of sequences. Other calibrations
    /// require a profile with a sample for every measurement in this list.
    pub(super) fn is_served_by(&self, profile: &Profile) -> bool {
        if self.is_quick { profile.timed_for.covers(&self.timed_for) } else { self.are_all_in(profile) }
    }

    fn are_all_in(&self, profile: &Profile) -> bool {
        let has = |segment: usize, at: &TimePoint| profile.has(&self.keys[segment], at);
        let plain = |rows: u32| TimePoint { rows, sequences: rows, positions: 0.0 };
        let mut chunk_times = ChunkTimes::default();
        let chunks = self.chunks.iter().filter(|batch| {
            let wanted = chunk_times.allows(batch);
            if wanted {
                chunk_times.record(batch, self.window_us(profile, batch));
            }
            wanted
        });
        let points = |batch: &SoloBatch, segment: usize| self.keys[segment].point(&micro_batch(batch));
        let middle = |batch: &SoloBatch| self.kinds.iter().all(|&kind| has(kind, &points(batch, kind)));
        self.embedding_rows().iter().all(|&rows| has(0, &plain(rows)))
            && self.head_rows.iter().all(|&rows| has(self.head(), &plain(rows)))
            && self.decode.iter().chain(chunks).all(middle)
    }

    /// Returns the time in microseconds that the window's blocks take for `batch` according to `profile`.
    /// Ignores blocks that are not in the profile.
    fn window_us(&self, profile: &Profile, batch: &SoloBatch) -> f64 {
        let time = |segment: usize| profile.time(&self.keys[segment], &micro_batch(batch));
        self.window.clone().filter_map(time).map(|time| time.value).sum()
    }

    /// Returns the time in microseconds that a decode step of the whole model takes on a device according to
    /// `profile`. Ignores segments that are not in the profile.
    pub(super) fn step_us(&self, profile: &Profile) -> f64 {
        let step = micro_batch(&SoloBatch::decode(1, CONTEXTS[0]));
        self.keys.iter().filter_map(|key| profile.time(key, &step)).map(|time| time.value).sum()
    }

    /// Returns the number of measurements per device.
    pub(super) fn count(&self) -> u64 {
        let singles = if self.is_uniform() { self.kinds.len().saturating_sub(1) } else { self.kinds.len() };
        let batches = self.decode.len() + self.chunks.len();
        ((singles + 1) * batches + self.embedding_rows().len() + self.head_rows.len() + 1) as u64
    }

    /// Returns the identity under which this model's profile on a device is cached. `together` is the number
    /// of devices that are timed at the same time.
    pub(super) fn identity(&self, adapter: &Adapter, together: u32) -> Result<ProfileIdentity> {
        Ok(ProfileIdentity {
            // All equal parts of a CPU share one profile.
            device: if is_processor(adapter) { adapter.backend.clone() } else { adapter.label() },
            name: adapter.name.clone(),
            driver: adapter.driver.to_string(),
            units: adapter.caps.parallel_units,
            together,
            kernels: self.kernels(adapter)?,
            shape: self.shape.clone(),
            activations: self.lowering.activations,
            kv: self.lowering.kv,
        })
    }

    /// Returns a digest of Ragtag's version, the device's features, and the variants and sources of the
    /// kernels. The digest does not depend on the requested chunk and number of sequences.
    fn kernels(&self, adapter: &Adapter) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
        hasher.update(format!("{:?}", adapter.caps.features).as_bytes());
        let first = self.window.start.min(self.head());
        let chunk = MAX_CHUNK.min(self.graph.hyperparameters().context.max(2));
        let usual = Lowering { context: chunk, sequences: 1, chunk, logit_rows: 1, ..self.lowering };
        for segments in [0..first + 1, self.head()..self.keys.len()] {
            let compiled = self.compile_for(&usual, segments, adapter)?;
            for (entry, variant) in compiled.variants.iter().enumerate() {
                hasher.update(variant.as_bytes());
                hasher.update(compiled.module.source.code(entry).unwrap_or_default());
            }
        }
        hasher.update(format!("{:?}", adapter.caps.gemm).as_bytes());
        Ok(hasher.finalize().to_hex()[..32].to_owned())
    }
}

/// Predictor of chunk times, based on the chunks that were already timed.
#[derive(Debug, Default)]
pub(super) struct ChunkTimes {
    /// Number of rows and time in microseconds of each timed chunk.
    seen: Vec<(u32, f64)>,
}

impl ChunkTimes {
    /// Returns the expected time of `batch` in microseconds. Takes the longest timed chunk that has no more
    /// rows than `batch`, and scales its time by the number of rows. Returns 0 for decode, or if there is no
    /// such chunk.
    pub(super) fn expected_us(&self, batch: &SoloBatch) -> f64 {
        let shorter = self.seen.iter().filter(|(rows, _)| *rows <= batch.rows_each && batch.rows_each > 1);
        let longest = shorter.max_by_key(|(rows, _)| *rows);
        longest.map_or(0.0, |&(rows, us)| us * f64::from(batch.rows_each) / f64::from(rows))
    }

    /// Returns whether `batch` is expected to be short enough to be timed.
    pub(super) fn allows(&self, batch: &SoloBatch) -> bool {
        self.expected_us(batch) <= LONGEST_US
    }

    /// Records the time of a batch, in microseconds.
    pub(super) fn record(&mut self, batch: &SoloBatch, us: f64) {
        self.seen.push((batch.rows_each, us));
    }
}

/// Returns the chunk sizes to time, up to `chunk`, in ascending order.
fn chunks(chunk: u32) -> Vec<u32> {
    buckets(chunk).into_iter().filter(|&rows| rows >= SMALLEST_CHUNK || rows == chunk).collect()
}

/// Returns the decode steps to time: one for each number of sequences in `rows` and each context. The steps
/// with one sequence come first, followed by those with most sequences.
fn decode_batches(rows: &[u32], longest: u32) -> Vec<SoloBatch> {
    let mut contexts = CONTEXTS.map(|positions| positions.min(longest)).to_vec();
    contexts.dedup();
    let most = rows.iter().skip(1).rev();
    let rows = rows.iter().take(1).chain(most);
    rows.flat_map(|&rows| contexts.iter().map(move |&at| SoloBatch::decode(rows, at))).collect()
}

/// Returns the chunks to time, at the start of a prompt and at the end of the far context, and a decode step
/// in the far context. The shortest chunk comes first, because its time predicts which chunks take too long.
/// `worth` lists the most important sizes.
fn chunk_batches(chunk: u32, far: u32, long: u32, worth: &[u32]) -> Vec<SoloBatch> {
    let rows = chunks(chunk);
    let worth = |rows: &u32| worth.iter().position(|worthy| worthy == rows).unwrap_or(worth.len());
    let mut by_worth: Vec<u32> = rows.iter().rev().copied().filter(|&rows| rows > 1).collect();
    by_worth.sort_by_key(worth);
    let far_one = rows.iter().copied().filter(|&rows| rows > 1 && rows <= FAR_ROWS && rows < far).max();
    let at_end = |rows: u32| SoloBatch::chunk(rows, far - rows);

    let mut batches = Vec::new();
    batches.extend(rows.first().filter(|&&rows| rows > 1).map(|&rows| SoloBatch::chunk(rows, 0)));
    let (worthiest, others) = by_worth.split_at(by_worth.len().min(3));
    batches.extend(worthiest.iter().map(|&rows| SoloBatch::chunk(rows, 0)));
    batches.extend(far_one.map(at_end));
    batches.extend((far > long).then(|| SoloBatch::decode(1, far)));
    batches.extend(others.iter().map(|&rows| SoloBatch::chunk(rows, 0)));
    batches.extend(by_worth.iter().filter(|&&rows| rows < far).map(|&rows| at_end(rows)));
    let mut seen = std::collections::HashSet::new();
    batches.retain(|batch| seen.insert((batch.rows_each, batch.first_position)));
    batches
}

/// Returns the length of the far context in positions, limited by [`FAR`], [`MAX_FAR_BYTES`] and `longest`.
fn far(window: &[Segment], longest: u32) -> u32 {
    let each: u64 = window.iter().map(|segment| segment.kv_bytes_per_position).sum();
    let most = u32::try_from(MAX_FAR_BYTES / each.max(1)).unwrap_or(u32::MAX);
    longest.min(FAR).min(most)
}

/// Returns the smallest and the largest row count of each bucket up to `most`, which must be a power of two.
/// Each bucket has its own program, so times jump from one bucket to the next.
fn ends_of_buckets(most: u32) -> Vec<u32> {
    let buckets = buckets(most);
    let firsts = buckets.iter().take(buckets.len() - 1).map(|rows| rows + 1);
    let mut ends: Vec<u32> = firsts.chain(buckets.iter().copied()).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Converts a timed batch to the shape that the cost model uses.
pub(super) fn micro_batch(batch: &SoloBatch) -> BatchShape {
    BatchShape {
        rows: batch.sequences * batch.rows_each,
        logit_rows: if batch.logits { batch.sequences } else { 0 },
        sequences: batch.sequences,
        positions: batch.positions(),
    }
}

/// Returns the blocks that are timed together: as many of the model's first blocks as the limits of
/// [`WINDOW`] allow.
fn window(segments: &[Segment]) -> Range<usize> {
    let most = segments.len().saturating_sub(2);
    let first = segments.get(1).map_or(1, bytes).max(1);
    let wanted = WINDOW.0.div_ceil(first).clamp(1, WINDOW.1 as u64) as usize;
    1..1 + wanted.min(most)
}

fn bytes(segment: &Segment) -> u64 {
    segment.tensors.iter().map(|tensor| tensor.resident_bytes).sum()
}

/// Returns a digest of the model properties that affect the times of its segments.
fn shape(model: &Model) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{:?}", model.hyperparameters()).as_bytes());
    if model.hyperparameters().extras.window.is_some() {
        // Profiles without KV rings have other keys for layers with a window.
        hasher.update(b"KV rings;");
    }
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
    fn long_chunks_are_skipped() {
        let mut chunk_times = ChunkTimes::default();
        let chunk = |rows| SoloBatch::chunk(rows, 0);
        assert!(chunk_times.allows(&chunk(4096)), "nothing was timed yet");
        chunk_times.record(&chunk(16), LONGEST_US / 8.0);
        assert!(chunk_times.allows(&SoloBatch::chunk(128, 480)) && !chunk_times.allows(&chunk(256)));
        assert!(chunk_times.allows(&SoloBatch::decode(64, 32)), "decode is always timed");
        // The prediction uses the longer of two timed chunks.
        chunk_times.record(&chunk(128), LONGEST_US / 4.0);
        assert!(chunk_times.allows(&chunk(512)) && !chunk_times.allows(&chunk(1024)));
    }

    #[test]
    fn the_most_important_measurements_come_first() {
        let batches = chunk_batches(4096, 8192, 512, &WORTH);
        let rows: Vec<_> = batches.iter().map(|batch| (batch.rows_each, batch.first_position)).collect();
        let first = [(16, 0), (512, 0), (2048, 0), (4096, 0), (512, 7680), (1, 8191), (128, 0), (1024, 0)];
        assert_eq!(rows[..8], first);
        assert_eq!((rows.len(), rows.last()), (19, Some(&(16, 8176))));
        let on_cpu = chunk_batches(4096, 8192, 512, &WORTH_ON_CPU);
        assert_eq!(on_cpu[..4].iter().map(|batch| batch.rows_each).collect::<Vec<_>>(), [16, 512, 128, 256]);
        assert_eq!(chunk_batches(1, 64, 64, &WORTH), []);
        assert_eq!(
            chunk_batches(32, 32, 32, &WORTH),
            [SoloBatch::chunk(16, 0), SoloBatch::chunk(32, 0), SoloBatch::chunk(16, 16)]
        );
        let decode: Vec<_> = decode_batches(&ends_of_buckets(4), 32).iter().map(|b| b.sequences).collect();
        assert_eq!(decode, [1, 4, 3, 2]);
    }
}
