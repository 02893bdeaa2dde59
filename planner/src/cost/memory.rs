//! Computes the memory that a stage needs. Rounds the size of each buffer up to its size class
//! ([`class_bytes`]), as devices do when they allocate it.
//!
//! This module knows nothing about times.

use super::{BufferLimits, DeviceFacts, WeightSharing};
use crate::plan::StageMemory;
use ragtag_graph::execution::{READ_PLACES, arena_buffers};
use ragtag_graph::{KvRing, Segment, SegmentTensor, WireType};
use ragtag_hal::pool::class_bytes;
use ragtag_kernels::checksum::place_bytes;
use ragtag_kernels::params::{BLOCK_TOKENS, ParamsShape};
use ragtag_kernels::picks::RECORD_BYTES;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Capacities that, together with the segments, determine the memory of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCapacity {
    /// Maximum length of a sequence, in positions.
    pub context: u32,
    /// Maximum number of sequences in the pipeline at once.
    pub sequences: u32,
    /// Number of blocks of the KV cache in layers that keep all positions.
    pub kv_blocks: u32,
    /// Maximum number of rows in a micro-batch.
    pub rows: u32,
    /// Largest window of the model's layers, in positions. `None` if all layers keep all positions.
    pub window: Option<u32>,
    /// Bytes of the state of a sequence in all recurrent layers of the model. 0 if it has none.
    pub state_bytes: u64,
    /// Maximum number of logit rows in a micro-batch.
    pub logit_rows: u32,
    /// Maximum number of micro-batches that the stage holds at once.
    pub slots: u32,
    /// Bytes of one row of activations in device memory.
    pub row_bytes: u64,
    /// Wire type of activations. If it is not f32, each slot of every stage has an additional buffer.
    pub wire_type: WireType,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
    /// Number of RoPE frequencies of a sequence that depend on its length.
    pub sequence_frequencies: u32,
    /// Whether the stage verifies transfers, so that each end of each slot has memory for checksums.
    pub verified: bool,
}

impl StageCapacity {
    /// Returns the number of KV cache blocks for one sequence at the full context.
    pub fn blocks(&self) -> u64 {
        u64::from(self.context).div_ceil(BLOCK_TOKENS as u64)
    }

    /// Returns the KV ring of the layers with a window, if it is shorter than the context, or the slots of states.
    pub fn kv_ring(&self) -> Option<KvRing> {
        let states = KvRing::of_states(self.state_bytes, self.sequences);
        states.or_else(|| KvRing::new(self.window, self.context, self.rows, self.sequences))
    }

    /// Returns the bytes of a segment's KV cache, which has one buffer for keys and one for values.
    pub fn kv_bytes(&self, kind: KvKind) -> u64 {
        sum(self.kv_buffer_bytes(kind).map(class_bytes))
    }

    /// Returns the sizes of the key buffer and of the value buffer, or of the buffers of states, in bytes, before rounding
    /// up to a size class.
    fn kv_buffer_bytes(&self, kind: KvKind) -> [u64; 2] {
        if kind.state_bytes != [0; 2] {
            let slots = self.kv_ring().map_or(0, |ring| u64::from(ring.total));
            return kind.state_bytes.map(|bytes| bytes.saturating_mul(slots));
        }
        let blocks = match self.kv_ring().filter(|_| kind.is_windowed) {
            Some(ring) => u64::from(ring.total),
            None => u64::from(self.kv_blocks),
        };
        let positions = blocks.saturating_mul(BLOCK_TOKENS as u64);
        [kind.key_bytes_per_position, kind.value_bytes_per_position]
            .map(|bytes| bytes.saturating_mul(positions))
    }

    /// Returns the maximum size of a micro-batch's logits, in bytes.
    pub fn logits_bytes(&self) -> u64 {
        u64::from(self.logit_rows).saturating_mul(self.logit_row_bytes)
    }

    /// Returns the maximum size of the best logits of a micro-batch, in bytes.
    pub fn picks_bytes(&self) -> u64 {
        u64::from(self.logit_rows).saturating_mul(RECORD_BYTES)
    }

    /// Returns the maximum size of a micro-batch's parameters, in bytes.
    pub fn params_bytes(&self) -> u64 {
        let params = ParamsShape {
            rows: self.rows,
            logit_rows: self.logit_rows,
            sequences: self.sequences,
            table_blocks: u32::try_from(self.blocks()).expect("a context has fewer blocks than positions"),
        };
        params.all_bytes(self.kv_ring().is_some(), self.sequence_frequencies)
    }

    /// Returns the bytes of all slots of a stage, and of the checksums of their transfers. If `last` is set,
    /// each slot includes logits.
    pub fn slot_bytes(&self, last: bool) -> u64 {
        let [logits, picks] = if last { [self.logits_bytes(), self.picks_bytes()] } else { [0; 2] };
        let rows = |row_bytes| u64::from(self.rows).saturating_mul(row_bytes);
        let transfer = match self.wire_type {
            WireType::F32 => 0,
            other => rows(other.row_bytes(self.row_bytes)),
        };
        let buffers = [self.params_bytes(), rows(self.row_bytes), transfer, logits, picks].map(class_bytes);
        let slots = buffers.into_iter().fold(0, u64::saturating_add).saturating_mul(u64::from(self.slots));
        slots.saturating_add(class_bytes(self.checksum_bytes()))
    }

    /// Returns the bytes of a stage's buffer of checksums. Host memory holds as many. Zero if the stage does
    /// not verify transfers.
    pub fn checksum_bytes(&self) -> u64 {
        if !self.verified {
            return 0;
        }
        let transfer = u64::from(self.rows).saturating_mul(self.wire_type.row_bytes(self.row_bytes));
        place_bytes(transfer).saturating_mul(2 * u64::from(self.slots))
    }
}

/// Properties of a segment that determine the size of its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KvKind {
    /// Bytes of keys per position.
    pub key_bytes_per_position: u64,
    /// Bytes of values per position.
    pub value_bytes_per_position: u64,
    /// Whether the segment keeps a window of positions only.
    pub is_windowed: bool,
    /// Bytes of the two states of a sequence, if the segment keeps those instead of keys and values.
    pub state_bytes: [u64; 2],
}

impl From<&Segment> for KvKind {
    fn from(segment: &Segment) -> Self {
        let value_bytes_per_position = segment.value_bytes_per_position;
        Self {
            key_bytes_per_position: segment
                .kv_bytes_per_position
                .checked_sub(value_bytes_per_position)
                .expect("keys and values take at least as much as values"),
            value_bytes_per_position,
            is_windowed: segment.window.is_some(),
            state_bytes: segment.state_bytes,
        }
    }
}

/// A buffer that exceeds a device's limit for allocations or bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBuffer {
    /// Name of the buffer, for error messages.
    pub what: &'static str,
    /// Size of the buffer, in bytes.
    pub bytes: u64,
    /// The device's limit, in bytes.
    pub limit: u64,
}

/// The streamed segments of a stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed<'a> {
    /// The segments, in ascending order.
    pub segments: &'a [usize],
    /// Number of arenas that they share.
    pub arenas: usize,
}

impl Streamed<'_> {
    /// No streamed segments.
    pub const NONE: Self = Self { segments: &[], arenas: 0 };
}

/// Returns the largest number from `least` to `most` for which `fits` holds, or `least` if it holds for none. If
/// it holds for a number, it must hold for all smaller ones.
pub(crate) fn largest(least: u32, most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if least >= most || fits(most) {
        return least.max(most);
    }
    let (mut low, mut high) = (least, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// Memory that the earlier stages of a device hold. Later stages of the device reuse the scratch memory, and
/// any tensors and KV caches that they have in common with earlier stages.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Ids of the held tensors.
    tensors: BTreeSet<usize>,
    /// Segments of the earlier stages.
    runs: Vec<Range<usize>>,
    scratch: u64,
    total: u64,
}

impl Held {
    /// Returns `memory`, which the latest stage needs, with `bytes` bytes for the checksums of keys and
    /// values.
    #[must_use]
    pub fn with_sums(&mut self, memory: StageMemory, bytes: u64) -> StageMemory {
        self.total = self.total.saturating_add(bytes);
        let (slots, total) = (memory.slots.saturating_add(bytes), memory.total.saturating_add(bytes));
        StageMemory { slots, total, ..memory }
    }
}

/// Memory needs of every contiguous run of segments, computed once for many queries.
#[derive(Clone, Debug)]
pub struct RunSizes {
    segments: usize,
    /// Ids and bytes of each segment's tensors.
    tensors_of: Vec<Vec<(usize, u64)>>,
    /// Sizes of the weights that are copied if a segment is streamed, in order. Empty if the segment must not
    /// be streamed.
    streamed_of: Vec<Vec<u64>>,
    /// For each of these weights, whether its layout depends on the device.
    varies_of: Vec<Vec<bool>>,
    /// Bytes of the distinct tensors of the run `first ..= last`, at `first * segments + last`.
    weights: Vec<u64>,
    /// Scratch bytes, indexed like `weights`.
    scratch: Vec<u64>,
    /// Scratch bytes on devices with f16 products, indexed like `weights`.
    wide_scratch: Vec<u64>,
    /// Bytes of the largest tensor of a micro-batch, indexed like `weights`.
    tensors: Vec<u64>,
    /// For each kind of KV cache: at index `i`, the number of segments in `0 .. i` with that kind.
    kv_before: Vec<(KvKind, Vec<u64>)>,
}

impl RunSizes {
    /// Computes the memory needs of all runs of `segments`.
    pub fn new(segments: &[Segment]) -> Self {
        let n = segments.len();
        let mut ids = HashMap::new();
        let mut id = |name| {
            let next = ids.len();
            *ids.entry(name).or_insert(next)
        };
        let tensors: Vec<Vec<(usize, u64)>> = segments
            .iter()
            .map(|s| s.tensors.iter().map(|t| (id(t.name.as_str()), class_bytes(t.resident_bytes))).collect())
            .collect();
        let none = || vec![0; n * n];
        let mut sizes = Self {
            segments: n,
            weights: none(),
            scratch: none(),
            wide_scratch: none(),
            tensors: none(),
            kv_before: Vec::new(),
            tensors_of: Vec::new(),
            streamed_of: streamed_weights(segments, |tensor| tensor.resident_bytes),
            varies_of: streamed_weights(segments, |tensor| tensor.layout_varies),
        };
        for first in 0..n {
            let mut kept = vec![false; ids.len()];
            let (mut weights, mut scratch, mut wide_scratch, mut tensor) = (0u64, 0u64, 0u64, 0u64);
            for last in first..n {
                for &(id, bytes) in &tensors[last] {
                    if !std::mem::replace(&mut kept[id], true) {
                        weights = weights.saturating_add(bytes);
                    }
                }
                scratch = scratch.max(segments[last].scratch_bytes);
                wide_scratch = wide_scratch.max(segments[last].wide_scratch_bytes);
                tensor = tensor.max(segments[last].tensor_bytes);
                sizes.weights[first * n + last] = weights;
                sizes.scratch[first * n + last] = scratch;
                sizes.wide_scratch[first * n + last] = wide_scratch;
                sizes.tensors[first * n + last] = tensor;
            }
        }
        let keeps = |s: &&Segment| s.kv_bytes_per_position > 0 || s.state_bytes != [0; 2];
        let kinds = segments.iter().filter(keeps).map(KvKind::from);
        let kinds: BTreeSet<KvKind> = kinds.collect();
        for kind in kinds {
            let mut before = vec![0];
            for segment in segments {
                let so_far = before[before.len() - 1];
                before.push(so_far + u64::from(KvKind::from(segment) == kind));
            }
            sizes.kv_before.push((kind, before));
        }
        sizes.tensors_of = tensors;
        sizes
    }

    /// Returns the KV cache bytes of the segments `first .. end`.
    pub fn kv_bytes(&self, first: usize, end: usize, shape: &StageCapacity) -> u64 {
        let of_kind = |(kind, before): &(KvKind, Vec<u64>)| {
            shape.kv_bytes(*kind).saturating_mul(before[end] - before[first])
        };
        self.kv_before.iter().map(of_kind).fold(0, u64::saturating_add)
    }

    /// Returns the KV cache bytes of all segments.
    pub fn all_kv_bytes(&self, shape: &StageCapacity) -> u64 {
        self.kv_bytes(0, self.segments, shape)
    }

    /// Returns the segments of `run` that may be streamed. The first and the last segment of the model may
    /// not, and neither may a segment that shares a tensor with another one.
    pub fn streamable(&self, run: Range<usize>) -> Vec<usize> {
        run.filter(|&segment| !self.streamed_of[segment].is_empty()).collect()
    }

    /// Returns the sizes of the weights that are copied if a segment is streamed, in order. Empty if it must
    /// not be streamed.
    pub fn streamed_weights(&self, segment: usize) -> &[u64] {
        &self.streamed_of[segment]
    }

    /// Returns the bytes of the weights of these streamed segments. The host holds a copy of them, unless
    /// [`Self::shared_bytes`] counts them.
    pub fn streamed_bytes(&self, streamed: &[usize]) -> u64 {
        sum(streamed.iter().flat_map(|&segment| self.streamed_of[segment].iter().copied()))
    }

    /// Returns the pinned host memory through which the weights of these segments are read from the model's
    /// file, in bytes.
    pub fn reading_bytes(&self, from_file: &[usize]) -> u64 {
        let largest = from_file.iter().map(|&segment| self.streamed_bytes(&[segment])).max();
        largest.unwrap_or(0).saturating_mul(READ_PLACES as u64)
    }

    /// Returns the bytes of those weights of these segments that `device` streams from the memory of `owner`,
    /// which holds the segments too. No device may have to split them.
    pub fn shared_bytes(&self, streamed: &[usize], device: &DeviceFacts, owner: &DeviceFacts) -> u64 {
        let all_types = match device.weight_sharing {
            WeightSharing::All | WeightSharing::Owner => true,
            WeightSharing::Blocks => false,
            WeightSharing::None => return 0,
        };
        if owner.weight_sharing != WeightSharing::Owner {
            return 0;
        }
        let most = whole_bytes(device).min(whole_bytes(owner));
        let weights = streamed.iter().flat_map(|&at| self.streamed_of[at].iter().zip(&self.varies_of[at]));
        let is_shared = |(bytes, varies): &(&u64, &bool)| **bytes <= most && (all_types || !**varies);
        sum(weights.filter(is_shared).map(|(bytes, _)| *bytes))
    }

    /// Returns the device memory that a segment would take if it were resident, without generated buffers.
    pub fn resident_bytes(&self, segment: usize) -> u64 {
        sum(self.streamed_of[segment].iter().map(|&bytes| class_bytes(bytes)))
    }

    /// Returns `weights`, the bytes of all weights of a stage, without those of its streamed segments. No other
    /// segment has the tensors of a streamed one.
    fn without(&self, streamed: Streamed<'_>, weights: u64) -> u64 {
        let absent = sum(streamed.segments.iter().map(|&segment| self.resident_bytes(segment)));
        assert!(absent <= weights, "a stage of {weights} bytes streams {absent} bytes in {streamed:?}");
        weights - absent
    }

    /// Returns the device memory of one arena for these streamed segments.
    pub fn arena_bytes(&self, streamed: &[usize]) -> u64 {
        let weights = streamed.iter().map(|&segment| self.streamed_of[segment].as_slice());
        sum(arena_buffers(weights).into_iter().map(class_bytes))
    }

    /// Returns the device memory of a stage that runs the segments `run` (at least one) and streams some of
    /// them. `staging` is the size of its staging ring, in bytes.
    pub fn stage(
        &self,
        run: Range<usize>,
        streamed: Streamed<'_>,
        shape: &StageCapacity,
        staging: u64,
        device: &DeviceFacts,
    ) -> StageMemory {
        let at = run.start * self.segments + run.end - 1;
        let weights = self.without(streamed, self.weights[at]);
        let arenas = self.arena_bytes(streamed.segments).saturating_mul(streamed.arenas as u64);
        let scratch = class_bytes(self.scratch_bytes(at, device));
        let kv = self.kv_bytes(run.start, run.end, shape);
        let slots = shape.slot_bytes(run.end == self.segments);
        let available = device.memory_bytes;
        let total = sum([weights, arenas, kv, scratch, slots, staging]);
        StageMemory { weights, arenas, kv, scratch, slots, staging, total, available }
    }

    /// Returns the memory that a stage needs in addition to the earlier stages of its device, and adds it to
    /// `held`. The stages of a device share identical tensors, the KV cache of a segment, and the scratch
    /// memory. Earlier stages have no segments in common.
    pub fn stage_beside(
        &self,
        held: &mut Held,
        run: Range<usize>,
        streamed: Streamed<'_>,
        shape: &StageCapacity,
        staging: u64,
        device: &DeviceFacts,
    ) -> StageMemory {
        let mut memory = self.stage(run.clone(), streamed, shape, staging, device);
        memory.available = memory.available.saturating_sub(held.total);
        memory.weights = 0;
        for other in &held.runs {
            let (first, end) = (other.start.max(run.start), other.end.min(run.end));
            let shared = if first < end { self.kv_bytes(first, end, shape) } else { 0 };
            memory.kv = memory.kv.saturating_sub(shared);
        }
        held.runs.push(run.clone());
        for &(id, bytes) in self.tensors_of[run].iter().flatten() {
            if held.tensors.insert(id) {
                memory.weights = memory.weights.saturating_add(bytes);
            }
        }
        memory.weights = self.without(streamed, memory.weights);
        let scratch = memory.scratch;
        memory.scratch = scratch.saturating_sub(held.scratch);
        held.scratch = held.scratch.max(scratch);
        let StageMemory { weights, arenas, kv, scratch, slots, .. } = memory;
        memory.total = sum([weights, arenas, kv, scratch, slots, staging]);
        held.total = held.total.saturating_add(memory.total);
        memory
    }

    /// Returns the first buffer of a stage that is too large for the device. Ignores weights, because a
    /// weight tensor that is too large is split.
    pub fn too_large(
        &self,
        run: Range<usize>,
        shape: &StageCapacity,
        device: &DeviceFacts,
    ) -> Option<LargeBuffer> {
        let at = run.start * self.segments + run.end - 1;
        let BufferLimits { allocation_bytes, binding_bytes } = device.buffers;
        let both = allocation_bytes.min(binding_bytes);
        let kinds = self.kv_before.iter().filter(|(_, before)| before[run.end] > before[run.start]);
        let kv = kinds.flat_map(|(kind, _)| shape.kv_buffer_bytes(*kind)).max().unwrap_or(0);
        let logits = if run.end == self.segments { shape.logits_bytes() } else { 0 };
        let buffers = [
            ("a buffer of keys or values", kv, both),
            ("the buffer of logits", logits, both),
            ("scratch", self.scratch_bytes(at, device), allocation_bytes),
            ("a tensor of a micro-batch", self.tensors[at], binding_bytes),
        ];
        let large = buffers.into_iter().find(|(_, bytes, limit)| bytes > limit);
        large.map(|(what, bytes, limit)| LargeBuffer { what, bytes, limit })
    }

    fn scratch_bytes(&self, at: usize, device: &DeviceFacts) -> u64 {
        if device.f16_products { self.wide_scratch[at] } else { self.scratch[at] }
    }
}

/// Returns the largest size in bytes of a weight that a device surely stores as one buffer. With f16
/// products, the dequantized copy of the weight must fit the limits, too. It is at most 16 times as large.
fn whole_bytes(device: &DeviceFacts) -> u64 {
    let BufferLimits { allocation_bytes, binding_bytes } = device.buffers;
    allocation_bytes.min(binding_bytes) / if device.f16_products { 16 } else { 1 }
}

/// Returns the sizes of the weights that are copied if a segment is streamed, for every segment. Generated weights
/// always stay on the device, because many segments share them.
fn streamed_weights<T>(segments: &[Segment], of: impl Fn(&SegmentTensor) -> T) -> Vec<Vec<T>> {
    let mut users = HashMap::<&str, usize>::new();
    for tensor in segments.iter().flat_map(|segment| &segment.tensors) {
        *users.entry(&tensor.name).or_default() += 1;
    }
    let of_segment = |(at, segment): (usize, &Segment)| {
        let own = segment.tensors.iter().filter(|tensor| !tensor.is_generated);
        let is_shared = own.clone().any(|tensor| users[tensor.name.as_str()] > 1);
        let is_end = at == 0 || at + 1 == segments.len();
        if is_end || is_shared { Vec::new() } else { own.map(&of).collect() }
    };
    segments.iter().enumerate().map(of_segment).collect()
}
