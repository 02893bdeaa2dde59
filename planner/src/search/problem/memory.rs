//! The memory proof: the device memory of each stage, and the host memory that stages share.

use super::{Problem, Run};
use crate::cost::Held;
use crate::plan::StageMemory;
use crate::search::Shortage;
use ragtag_graph::execution::{PREFILLS, passing_blocks};
use ragtag_hal::pool::class_bytes;
use ragtag_kernels::checksum::place_bytes;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::HashMap;

impl Problem<'_> {
    /// Returns the memory of a stage. `before` is the device of the previous stage.
    pub fn memory(&self, run: &Run, before: Option<usize>) -> StageMemory {
        let staging = before.map_or(0, |before| self.link(before, run.device).routes.staging_bytes());
        let device = &self.input.devices[run.device];
        self.lowered.sizes.stage(run.segments.clone(), run.streamed(), &self.shape, staging, device)
    }

    /// Returns the memory of each stage of a placement, and of the prefill stage if there is one. The prefill
    /// stage comes last. If a device has several stages, the memory that the earlier stages need is no longer
    /// available to the later ones.
    pub fn memories_with(&self, runs: &[Run], prefill: Option<&Run>) -> Vec<StageMemory> {
        let mut held = HashMap::<usize, Held>::new();
        let receives = |run: &Run| prefill.is_some_and(|prefill| prefill.device != run.device);
        let sums = |run: &Run| class_bytes(self.passing_sum_bytes(run));
        let memory = |(before, run): (Option<&Run>, &Run)| {
            let staging =
                before.map_or(0, |before| self.link(before.device, run.device).routes.staging_bytes());
            let (held, device) = (held.entry(run.device).or_default(), &self.input.devices[run.device]);
            let is_prefill = prefill.is_some_and(|prefill| std::ptr::eq(prefill, run));
            let sum_bytes = match is_prefill {
                true => runs.iter().filter(|run| receives(run)).map(sums).fold(0, u64::saturating_add),
                false if receives(run) => sums(run),
                false => 0,
            };
            let memory = self.lowered.sizes.stage_beside(
                held,
                run.segments.clone(),
                run.streamed(),
                &self.shape,
                staging,
                device,
            );
            held.with_sums(memory, sum_bytes)
        };
        let before = std::iter::once(None).chain(runs.iter().map(Some));
        before.zip(runs).chain(prefill.map(|run| (None, run))).map(memory).collect()
    }

    /// Returns the shortage of a stage, if it lacks memory or exceeds a buffer limit. `before` is the device
    /// of the previous stage. Assumes that the device has no other stage.
    pub fn shortage(&self, run: &Run, before: Option<usize>) -> Option<Shortage> {
        self.shortage_of(run, self.memory(run, before))
    }

    fn shortage_of(&self, run: &Run, memory: StageMemory) -> Option<Shortage> {
        let device = &self.input.devices[run.device];
        let too_large = self.lowered.sizes.too_large(run.segments.clone(), &self.shape, device);
        let lacks = memory.total > memory.available || too_large.is_some();
        lacks.then(|| Shortage { device: device.label.clone(), segments: run.span(), memory, too_large })
    }

    /// Checks the memory of a placement. Returns an error with the shortages of all stages if the placement
    /// does not fit.
    pub fn prove(&self, runs: &[Run]) -> Result<(), Vec<Shortage>> {
        self.prove_with(runs, None)
    }

    /// Checks the memory of a placement with a prefill stage, if there is one. Fails like [`Self::prove`].
    pub fn prove_with(&self, runs: &[Run], prefill: Option<&Run>) -> Result<(), Vec<Shortage>> {
        let memories = self.memories_with(runs, prefill).into_iter();
        let shortages = runs.iter().chain(prefill).zip(memories);
        let shortages: Vec<_> = shortages.filter_map(|(run, memory)| self.shortage_of(run, memory)).collect();
        if shortages.is_empty() { Ok(()) } else { Err(shortages) }
    }

    /// Returns the memory for the checksums of keys and values that pass to a stage, in bytes. Each block has
    /// a place of its own. Zero if transfers are not verified.
    pub fn passing_sum_bytes(&self, run: &Run) -> u64 {
        let bytes = self.lowered.segments[run.segments.clone()].iter().map(|of| of.kv_bytes_per_position);
        let bytes: Vec<u64> = bytes.filter(|bytes| *bytes > 0 && self.shape.verified).collect();
        let largest = bytes.iter().copied().max().unwrap_or(0).div_ceil(2);
        let places = 2 * PREFILLS as u64 * passing_blocks(self.shape.rows, self.shape.sequences);
        let place_bytes = place_bytes(largest.saturating_mul(BLOCK_TOKENS as u64));
        place_bytes.saturating_mul(places).saturating_mul(bytes.len() as u64)
    }

    /// Returns the bytes of the weights that the prefill stage streams from the memory of the devices that
    /// decode their segments.
    pub fn shared_bytes(&self, runs: &[Run], prefill: &Run) -> u64 {
        let devices = &self.input.devices;
        let of_run = |run: &Run| {
            let is_held =
                |segment: &&usize| run.segments.contains(segment) && !run.streamed.contains(segment);
            let held: Vec<usize> = prefill.streamed.iter().filter(is_held).copied().collect();
            self.lowered.sizes.shared_bytes(&held, &devices[prefill.device], &devices[run.device])
        };
        let receivers = runs.iter().filter(|run| run.device != prefill.device);
        receivers.map(of_run).fold(0, u64::saturating_add)
    }

    /// Returns the host memory through which keys and values pass from the prefill stage to the devices that
    /// decode, in bytes.
    pub fn passing_bytes(&self, runs: &[Run], prefill: &Run) -> u64 {
        let passes = |run: &&Run| run.device != prefill.device;
        let segments =
            runs.iter().filter(passes).flat_map(|run| &self.lowered.segments[run.segments.clone()]);
        let per_position = segments.map(|segment| segment.kv_bytes_per_position).fold(0, u64::saturating_add);
        let blocks = PREFILLS as u64 * passing_blocks(self.shape.rows, self.shape.sequences);
        per_position.saturating_mul(BLOCK_TOKENS as u64).saturating_mul(blocks)
    }
}
