//! Keys and values that pass from a prefill stage to a stage that decodes: their layout in host memory, and
//! the commands of their copies.
//!
//! A place of the region holds the blocks that a micro-batch writes, buffer after buffer. Both ends number
//! the blocks in the order of the micro-batch's items.

use super::Actor;
use super::checksum::Checksums;
use super::memory::StageBuffers;
use super::owned::OwnedDevice;
use super::shared::kv_segments;
use super::verify::Summed;
use crate::copies::Copied;
use crate::core::{MicroBatch, PassingAction, StageEvent};
use crate::error::{Error, Result};
use crate::message::{DeviceAddress, DeviceMessage};
use crate::trace::{Label, SpanKind};
use ragtag_graph::CompiledStage;
use ragtag_graph::execution::PREFILLS;
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, HostRegion, Point, QueueKind, RegionId, Submission, Timeline,
    Work,
};
use ragtag_kernels::params::BLOCK_TOKENS;
use std::ops::Range;
use std::sync::Arc;

/// A passage, as one of its two stages sees it.
pub(crate) struct Passage {
    /// Segments whose keys and values pass.
    pub(crate) segments: Range<usize>,
    /// Host memory of all places.
    pub(crate) region: Arc<HostRegion>,
    /// Maximum number of blocks in a place.
    pub(crate) blocks: u64,
    /// Label of the other stage's device.
    pub(crate) label: String,
    /// Address of the mailbox of this device.
    pub(crate) address: DeviceAddress,
    /// Index of the other stage among the stages of its device.
    pub(crate) stage: usize,
    /// Timeline of the other stage's device that signals the points for which this stage waits.
    pub(crate) timeline: Arc<Timeline>,
}

/// Returns the size in bytes of the region of a passage to `receiver`, whose places hold up to `blocks`
/// blocks.
pub(crate) fn region_bytes(receiver: &CompiledStage, blocks: u64) -> u64 {
    let block_bytes: u64 = (0..receiver.kv_bytes.len()).map(|buffer| receiver.kv_block_bytes(buffer)).sum();
    block_bytes.saturating_mul(blocks).saturating_mul(PREFILLS as u64)
}

/// A buffer whose keys or values pass.
struct Passed {
    segment: usize,
    buffer: BufferId,
    block_bytes: u64,
    /// Whether its blocks are those of KV rings.
    in_ring: bool,
}

/// A passage of a loaded stage.
pub(crate) struct LoadedPassage {
    passage: Passage,
    region: RegionId,
    buffers: Vec<Passed>,
    /// Present if keys and values are verified.
    checksums: Option<Checksums>,
}

/// Place and bytes of each summed range of a micro-batch's keys and values.
pub(crate) type SummedRanges = Vec<(u32, u64)>;

impl LoadedPassage {
    /// Finds the buffers of a passage, and registers its host memory.
    ///
    /// # Errors
    /// Fails if the device cannot access the host memory.
    pub(crate) fn new(
        passage: Passage,
        device: &mut OwnedDevice,
        memory: &StageBuffers,
    ) -> ragtag_hal::Result<Self> {
        let compiled = memory.compiled();
        let buffers = kv_segments(compiled).into_iter().zip(memory.kv()).enumerate();
        let passed = |(at, (segment, buffer)): (usize, (usize, &BufferId))| Passed {
            segment,
            buffer: *buffer,
            block_bytes: compiled.kv_block_bytes(at),
            in_ring: compiled.is_kv_ring[at],
        };
        let buffers =
            buffers.map(passed).filter(|passed| passage.segments.contains(&passed.segment)).collect();
        let region = device.new_region(&passage.region)?;
        Ok(Self { passage, region, buffers, checksums: None })
    }

    /// Creates the objects for the checksums.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or has no variant of the kernel.
    pub(crate) fn verify(&mut self, device: &mut OwnedDevice) -> ragtag_hal::Result<()> {
        let most_bytes = self.buffers.iter().map(|passed| passed.block_bytes).max().unwrap_or(0);
        let places = self.buffers.len() as u64 * self.passage.blocks * PREFILLS as u64;
        self.checksums = Some(Checksums::new(device, most_bytes, places)?);
        Ok(())
    }

    /// Returns the commands that compute the checksum of a micro-batch's blocks in the cache, those that copy
    /// it to the host, and its ranges.
    ///
    /// # Errors
    /// [`Error::Protocol`] without verification.
    pub(crate) fn sum_commands(
        &self,
        device: &dyn Device,
        batch: &MicroBatch,
        place: u32,
    ) -> Result<(Vec<Command>, Vec<Command>, SummedRanges)> {
        let checksums = self.checksums()?;
        let runs = [false, true].map(|in_ring| block_runs(batch, in_ring));
        let (mut sums, mut downloads, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        for (at, passed) in (0..).zip(&self.buffers) {
            let Passed { buffer, block_bytes, in_ring, .. } = *passed;
            for run in &runs[usize::from(in_ring)] {
                let in_place = u64::from(place) * self.buffers.len() as u64 + at;
                let first = (in_place * self.passage.blocks + run.at) as u32;
                let bytes = run.count * block_bytes;
                let range = BufferRange { buffer, offset: run.first * block_bytes, bytes };
                let [sum, download] = checksums.commands(device, (first, run.count), range);
                sums.push(sum);
                downloads.push(download);
                ranges.push((first, bytes));
            }
        }
        Ok((sums, downloads, ranges))
    }

    /// Returns the checksum of ranges whose sums are on the host.
    ///
    /// # Errors
    /// [`Error::Protocol`] without verification, or if a device still writes the sums.
    pub(crate) fn sum(&self, ranges: &SummedRanges) -> Result<u64> {
        let checksums = self.checksums()?;
        ranges.iter().try_fold(0u64, |all, &(place, bytes)| {
            Ok(all.rotate_left(1).wrapping_add(checksums.read(place, bytes)?))
        })
    }

    fn checksums(&self) -> Result<&Checksums> {
        self.checksums.as_ref().ok_or_else(|| Error::protocol("a checksum without verification"))
    }

    /// Returns the label of the other stage's device.
    pub(crate) fn label(&self) -> &str {
        &self.passage.label
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.passage.timeline
    }

    /// Returns whether keys or values of these segments pass.
    pub(crate) fn has(&self, segments: &Range<usize>) -> bool {
        self.buffers.iter().any(|passed| segments.contains(&passed.segment))
    }

    /// Sends an event to the other stage.
    pub(crate) fn send(&self, event: StageEvent) -> Result<()> {
        self.passage.address.send(DeviceMessage::Event { stage: self.passage.stage, event })
    }

    /// Returns the commands that copy the blocks of a micro-batch between the cache and a place: `to_host`
    /// from the cache, otherwise to it. Copies the buffers of `segments` only.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the micro-batch has too many blocks.
    pub(crate) fn commands(
        &self,
        batch: &MicroBatch,
        place: u32,
        segments: &Range<usize>,
        to_host: bool,
    ) -> Result<Vec<Command>> {
        let runs = [false, true].map(|in_ring| block_runs(batch, in_ring));
        let Passage { blocks, .. } = self.passage;
        if runs[0].iter().map(|run| run.count).sum::<u64>() > blocks {
            return Err(Error::protocol(format!("{} has too many blocks for a place", batch.id)));
        }
        let place_bytes: u64 = self.buffers.iter().map(|passed| passed.block_bytes * blocks).sum();
        let mut start = u64::from(place) * place_bytes;
        let mut commands = Vec::new();
        for passed in &self.buffers {
            let Passed { segment, buffer, block_bytes, in_ring } = *passed;
            for run in runs[usize::from(in_ring)].iter().filter(|_| segments.contains(&segment)) {
                let offset = start + run.at * block_bytes;
                let bytes = run.count * block_bytes;
                let range = BufferRange { buffer, offset: run.first * block_bytes, bytes };
                commands.push(match to_host {
                    true => Command::Download { from: range, region: self.region, offset },
                    false => Command::Upload { region: self.region, offset, to: range },
                });
            }
            start += block_bytes * blocks;
        }
        Ok(commands)
    }
}

impl Actor {
    /// Executes an action about keys and values of the stage at index `at` of this device.
    pub(super) fn pass(&mut self, at: usize, action: PassingAction) -> Result<()> {
        let stage = &self.stages[at];
        match action {
            PassingAction::Pass { to, place, part, micro_batch, waits, signal } => {
                let segments = stage.memory.part_segments(part);
                let commands = stage.passage(to)?.commands(&micro_batch, place, &segments, true)?;
                self.copy_passed(at, commands, &micro_batch, (QueueKind::Download, waits, signal))
            }
            PassingAction::Keep { micro_batch, place, waits, signal } => {
                let segments = &stage.memory.compiled().segments;
                let commands = stage.passage(0)?.commands(&micro_batch, place, segments, false)?;
                self.copy_passed(at, commands, &micro_batch, (QueueKind::Upload, waits, signal))
            }
            PassingAction::Announce { to, passed } => stage.passage(to)?.send(StageEvent::Passed(passed)),
            PassingAction::Answer(read) => stage.passage(0)?.send(StageEvent::PlaceRead(read)),
            PassingAction::Sum { to, place, micro_batch, waits, computed, signal } => {
                let passage = stage.passage(to)?;
                let (sums, downloads, ranges) = passage.sum_commands(&self.device, &micro_batch, place)?;
                let bytes = ranges.iter().map(|(_, bytes)| bytes).sum();
                let label = Label::copy(SpanKind::Checksum, micro_batch.id, bytes, false);
                let of = Summed::KeysAndValues { to, place, ranges };
                self.sum(at, ([sums, downloads], label, of), waits, [computed, signal])
            }
            PassingAction::SendSum { to, place, sum } => {
                stage.passage(to)?.send(StageEvent::PassedSum { place, sum })
            }
            PassingAction::Wrong => {
                let from = stage.passage(0)?.label().into();
                Err(Error::WrongKeysAndValues { from, stage: stage.stage, to: self.label.clone() })
            }
        }
    }

    /// Submits a copy of keys and values.
    fn copy_passed(
        &mut self,
        at: usize,
        commands: Vec<Command>,
        batch: &MicroBatch,
        (queue, waits, signal): (QueueKind, Vec<Point>, Point),
    ) -> Result<()> {
        let submission = Submission::timed(queue, Work::Commands(commands), waits, signal);
        self.submit(at, submission, Label::of(SpanKind::KeysAndValues, batch, 0), Some(Copied::KeysAndValues))
    }
}

/// Consecutive blocks of the cache.
#[derive(Debug, PartialEq)]
struct BlockRun {
    /// The first block.
    first: u64,
    count: u64,
    /// Number of blocks of the micro-batch before this run.
    at: u64,
}

/// Returns the blocks that a micro-batch writes, of KV rings if `in_ring` is set.
fn block_runs(batch: &MicroBatch, in_ring: bool) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    let tokens = BLOCK_TOKENS as u32;
    let written = batch.items.iter().flat_map(|item| {
        let range = item.first_position / tokens..item.end_position().div_ceil(tokens);
        range.filter_map(move |index| item.block(index as usize, in_ring))
    });
    for (at, block) in (0..).zip(written) {
        match runs.last_mut() {
            Some(run) if run.first + run.count == u64::from(block) => run.count += 1,
            _ => runs.push(BlockRun { first: block.into(), count: 1, at }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Item, LogitRows, MicroBatchId, SequenceId};

    #[test]
    fn neighbouring_blocks_are_copied_together() {
        let item = |first_position, rows: u32, blocks: &[u32]| Item {
            sequence: SequenceId(0),
            epoch: 0,
            first_position,
            prompt_tokens: 0,
            tokens: vec![0; rows as usize],
            blocks: blocks.into(),
            ring: [1, 2, 5].into(),
            logits: LogitRows::None,
            noise: None,
        };
        // Positions 20 to 49 are in blocks 1 to 3 of the first sequence.
        let items = vec![item(20, 30, &[9, 4, 5, 7, 8]), item(0, 16, &[8, 3])];
        let batch = MicroBatch { id: MicroBatchId(0), credit: 0, items };
        let run = |first, count, at| BlockRun { first, count, at };
        assert_eq!(block_runs(&batch, false), [run(4, 2, 0), run(7, 2, 2)]);
        assert_eq!(block_runs(&batch, true), [run(2, 1, 0), run(5, 1, 1), run(1, 1, 2), run(1, 1, 3)]);
    }
}
