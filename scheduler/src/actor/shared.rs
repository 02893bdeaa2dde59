//! Buffers and host memory that the stages of one device share.

use crate::actor::owned::OwnedDevice;
use crate::actor::streaming::{Streamed, Streaming};
use ragtag_graph::{CompiledStage, StageBuffer, WeightBuffer};
use ragtag_hal::pool::class_bytes;
use ragtag_hal::{BufferId, Device, HostPages, HostRegion, RegionId, SharedMemory};
use std::collections::HashMap;
use std::sync::Arc;

/// Objects that the stages of one device share.
#[derive(Debug, Default)]
pub(crate) struct SharedBuffers {
    /// Host memory for logits, once it is registered.
    logits: Option<RegionId>,
    /// Scratch buffer. All stages use the same one, because the device computes one micro-batch at a time.
    pub(super) scratch: Option<BufferId>,
    /// Buffers of the KV cache, each with its segment. A prefill stage uses those of the other stages.
    kv: Vec<(usize, BufferId)>,
    /// Weights that already have a buffer. A later stage can use the same buffer, for example if the output
    /// projection is also the embedding.
    pub(super) weights: Vec<(WeightBuffer, BufferId)>,
    /// Whether other devices may import the weights.
    pub(super) lends_weights: bool,
}

impl SharedBuffers {
    /// Creates the scratch buffer for `stages` on a device that has no objects yet.
    ///
    /// # Errors
    /// Fails if the device runs out of memory.
    pub(crate) fn new(device: &mut OwnedDevice, stages: &[&CompiledStage]) -> ragtag_hal::Result<Self> {
        let scratch_bytes = stages.iter().map(|stage| stage.scratch_bytes).max().unwrap_or(0);
        Ok(Self { scratch: optional_buffer(device, scratch_bytes)?, ..Self::default() })
    }

    /// Returns the total bytes of all buffers that `stages` need, each with its streamed segments.
    pub(crate) fn needed_bytes(stages: &[(&CompiledStage, Streamed<'_>)], slots: u32) -> u64 {
        let (mut bytes, mut weights, mut held) = (0, Vec::<&WeightBuffer>::new(), Vec::new());
        for (stage, streamed) in stages {
            let layout = Streaming::new(stage, *streamed, |_| false);
            bytes += layout.arenas().map(class_bytes).sum::<u64>();
            for (_, weight) in stage.weights.iter().enumerate().filter(|(at, _)| !layout.streams(*at)) {
                if !weights.iter().any(|other| other.is_same(weight)) {
                    bytes += class_bytes(weight.bytes());
                    weights.push(weight);
                }
            }
            let kv = stage.kv_bytes.iter().zip(kv_segments(stage));
            let own = kv.filter(|(_, segment)| !held.contains(segment));
            bytes += own.map(|(bytes, _)| class_bytes(*bytes)).sum::<u64>();
            held.extend(stage.segments.clone());
            bytes += stage.slot_buffers().map(class_bytes).iter().sum::<u64>() * u64::from(slots);
        }
        bytes + class_bytes(stages.iter().map(|(stage, _)| stage.scratch_bytes).max().unwrap_or(0))
    }

    /// Returns the id of the host memory for logits. Registers it if no earlier stage of the device has.
    pub(crate) fn logits_region(
        &mut self,
        device: &mut OwnedDevice,
        region: &Arc<HostRegion>,
    ) -> ragtag_hal::Result<RegionId> {
        let id = self.logits.map_or_else(|| device.new_region(region), Ok)?;
        self.logits = Some(id);
        Ok(id)
    }

    /// Returns the buffers of a stage's KV cache. Creates those of segments that no earlier stage has.
    pub(super) fn kv_buffers(
        &mut self,
        device: &mut OwnedDevice,
        compiled: &CompiledStage,
    ) -> ragtag_hal::Result<Vec<BufferId>> {
        let (segments, earlier) = (kv_segments(compiled), self.kv.clone());
        let mut buffers = Vec::new();
        for (at, (&segment, &bytes)) in segments.iter().zip(&compiled.kv_bytes).enumerate() {
            let nth = segments[..at].iter().filter(|&&other| other == segment).count();
            let mut held = earlier.iter().filter(|(other, _)| *other == segment);
            let buffer = match held.nth(nth) {
                Some((_, buffer)) => *buffer,
                None => {
                    let buffer = device.new_buffer(bytes)?;
                    self.kv.push((segment, buffer));
                    buffer
                }
            };
            buffers.push(buffer);
        }
        Ok(buffers)
    }
}

/// Returns the segment of each buffer of the KV cache.
pub(crate) fn kv_segments(compiled: &CompiledStage) -> Vec<usize> {
    let mut segments = vec![compiled.segments.start; compiled.kv_bytes.len()];
    let steps = compiled.programs.first().into_iter().flat_map(|program| &program.steps);
    for (slice, segment) in steps.flat_map(|step| step.slices.iter().map(|slice| (slice, step.segment))) {
        if let StageBuffer::Kv(buffer) = slice.buffer {
            segments[buffer] = segment;
        }
    }
    segments
}

/// Returns whether the KV caches of the segments in `part` have blocks of the same sizes in `whole`.
pub(crate) fn same_kv_blocks(whole: &CompiledStage, part: &CompiledStage) -> bool {
    let blocks = |compiled: &CompiledStage| -> Vec<(usize, u64)> {
        let segments = kv_segments(compiled).into_iter().enumerate();
        let within = segments.filter(|(_, segment)| part.segments.contains(segment));
        within.map(|(buffer, segment)| (segment, compiled.kv_block_bytes(buffer))).collect()
    };
    let counts = |compiled: &CompiledStage| (compiled.kv_blocks, compiled.kv_ring);
    counts(whole) == counts(part) && blocks(whole) == blocks(part)
}

/// Imports host memory for weights, and returns the buffer of each weight. If `streams` is true, ignores
/// memory that the device cannot import.
///
/// # Errors
/// Fails if the device cannot import memory and `streams` is false.
pub(crate) fn import_weights(
    device: &mut OwnedDevice,
    weights: &[(usize, Arc<HostPages>)],
    streams: bool,
) -> ragtag_hal::Result<HashMap<usize, BufferId>> {
    let mut imported = HashMap::new();
    for (weight, pages) in weights {
        let (id, handle) = (device.new_buffer_id(), Arc::clone(pages));
        match device.import_buffer(id, &SharedMemory { bytes: pages.bytes(), handle }) {
            Ok(()) => drop(imported.insert(*weight, id)),
            Err(error) if streams => {
                let device = device.adapter().label();
                tracing::warn!(device, %error, "cannot stream from another device; copying the weights");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(imported)
}

/// Creates a buffer. If `is_lent` is true, another device may import it, unless the device cannot share memory.
pub(super) fn lent_buffer(
    device: &mut OwnedDevice,
    bytes: u64,
    is_lent: bool,
) -> ragtag_hal::Result<BufferId> {
    if !is_lent {
        return device.new_buffer(bytes);
    }
    let id = device.new_buffer_id();
    match device.create_shared_buffer(id, bytes) {
        Err(ragtag_hal::Error::Unsupported { .. }) => device.create_buffer(id, bytes)?,
        other => other?,
    }
    Ok(id)
}

/// Creates a buffer. Returns `None` if `bytes` is 0.
pub(super) fn optional_buffer(device: &mut OwnedDevice, bytes: u64) -> ragtag_hal::Result<Option<BufferId>> {
    if bytes == 0 { Ok(None) } else { device.new_buffer(bytes).map(Some) }
}
