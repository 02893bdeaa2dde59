//! Describes the planning problem at one point of the search grid: the times of all stages and transfers, and
//! the instance for the solver. This module knows nothing about the search or the explanation.

use super::grid::SAME;
use super::solver::{Costs, DeviceCosts, Instance, LinkCosts, SharedBus, Term};
use super::workload_times::{Point, Times, WorkloadTimes};
use super::{PlannerInput, Shortage};
use crate::cost::{
    BoundaryTime, DeviceFacts, Held, LinkFacts, QueuePart, RunSizes, SegmentKey, SharedLink, StageCapacity,
    Streamed, floor_us, segment_time_us, step_us,
};
use crate::plan::StageMemory;
use crate::split::Span;
use crate::streaming::{Arenas, PREFILLS, parts, passing_blocks};
use ragtag_graph::Segment;
use ragtag_hal::pool::class_bytes;
use ragtag_kernels::checksum::place_bytes;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A contiguous, non-empty run of segments on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Index of the device.
    pub device: usize,
    /// The segments.
    pub segments: Range<usize>,
    /// Streamed segments, in ascending order.
    pub streamed: Vec<usize>,
    /// Number of arenas that the streamed segments share. `None` stands for the fewest.
    pub arenas: Option<usize>,
    /// Streamed segments that are read from the model's file, in ascending order.
    pub from_file: Vec<usize>,
}

impl Run {
    /// Returns a run whose weights are all resident.
    pub fn new(device: usize, segments: Range<usize>) -> Self {
        Self { device, segments, streamed: Vec::new(), arenas: None, from_file: Vec::new() }
    }

    /// Returns a run with these streamed segments, which share the most arenas up to `most`.
    pub fn streaming(self, streamed: Vec<usize>, most: usize) -> Self {
        let arenas = Some(Arenas::at_most(streamed.len(), most).count());
        Self { arenas: arenas.filter(|_| !streamed.is_empty()), streamed, ..self }
    }

    /// Returns the arenas of the streamed segments.
    pub fn arenas(&self) -> Arenas {
        Arenas::at_most(self.streamed.len(), self.arenas.unwrap_or(0))
    }

    /// Returns the streamed segments that the device copies for each micro-batch.
    pub fn copied(&self) -> &[usize] {
        &self.streamed[..self.arenas().copied()]
    }

    /// Returns the host memory for the weights of the streamed segments, in bytes: pinned copies, and the
    /// places for reads from the model's file.
    pub fn pinned_bytes(&self, sizes: &RunSizes) -> u64 {
        let pinned = self.streamed.iter().copied().filter(|segment| !self.from_file.contains(segment));
        let pinned: Vec<usize> = pinned.collect();
        sizes.streamed_bytes(&pinned).saturating_add(sizes.reading_bytes(&self.from_file))
    }

    fn streamed(&self) -> Streamed<'_> {
        Streamed { segments: &self.streamed, arenas: self.arenas().count() }
    }

    pub fn span(&self) -> Span {
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span::new(number(self.segments.start), number(self.segments.end - 1))
            .expect("a run has at least one segment")
    }
}

/// The model's segments, lowered for one prefill chunk length, and the memory needs of every run of segments.
pub(super) struct Lowered<'a> {
    pub chunk: u32,
    pub segments: &'a [Segment],
    pub sizes: RunSizes,
}

impl<'a> Lowered<'a> {
    pub fn new(chunk: u32, segments: &'a [Segment]) -> Self {
        Self { chunk, segments, sizes: RunSizes::new(segments) }
    }
}

/// Predictions of the cost model for a placement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evaluation {
    /// Times of each stage.
    pub stages: Vec<Times>,
    /// Times of the prefill stage, if there is one. The other stages and the transfers then have no times for
    /// prefill chunks.
    pub prefill: Option<Times>,
    /// The devices of the placement, each with the sum of the times of its stages.
    pub devices: Vec<(usize, Times)>,
    /// Times of each transfer to the next stage.
    pub transfers: Vec<Times>,
    /// Busy times of each shared link, summed over all transfers of the placement that use it.
    pub shared: Vec<Times>,
    /// Times of the token return: copying logits to the host, and sending the next tokens to the first stage.
    pub token_return: Times,
    /// Score, in microseconds per request. A smaller score is better.
    pub score_us: f64,
    /// Time per request if prompts and decode steps never overlap, in microseconds.
    pub apart_us: f64,
    /// Value by which the search compares grid points. If the planner simulates plans, this is the larger of
    /// `score_us` and `apart_us`. Otherwise, it is `score_us`. The score assumes that busy times overlap
    /// perfectly, so it favours many small decode micro-batches. `apart_us` is closer to the result of a
    /// simulation.
    pub expected_us: f64,
    /// Decode tokens per second.
    pub decode_tokens_per_s: f64,
    /// Prefill tokens per second when the pipeline is full.
    pub prefill_tokens_per_s: f64,
    /// Time from a request's arrival to its first token in an otherwise empty pipeline, in microseconds.
    pub first_token_us: f64,
    /// Time between two consecutive tokens of a sequence, in microseconds.
    pub token_us: f64,
    /// Fraction of a decode round during which the slowest stage is idle.
    pub decode_idle: f64,
}

/// The planning problem at one point of the grid, for a fixed context.
pub(super) struct Problem<'a> {
    pub input: &'a PlannerInput<'a>,
    pub point: Point,
    pub workload_times: WorkloadTimes,
    pub shape: StageCapacity,
    pub lowered: Arc<Lowered<'a>>,
    /// For each device: at index `i`, the sum of the times of the segments `0 .. i`.
    before: Vec<Vec<Times>>,
    /// Transfer times at `from * devices + to`.
    transfers: Vec<Times>,
    links: Vec<&'a LinkFacts>,
}

impl<'a> Problem<'a> {
    pub fn new(input: &'a PlannerInput<'a>, lowered: Arc<Lowered<'a>>, context: u32, point: Point) -> Self {
        let limits = &input.limits;
        let shape = StageCapacity {
            context,
            sequences: limits.sequences,
            rows: point.chunk,
            window: lowered.segments.iter().filter_map(|segment| segment.window).max(),
            logit_rows: limits.logit_rows_of(point.groups, point.chunk),
            slots: limits.slots,
            row_bytes: input.model.row_bytes,
            wire_type: point.wire_type,
            logit_row_bytes: input.model.logit_row_bytes,
            verified: limits.verified,
        };
        let workload_times = WorkloadTimes::new(input, context, point);
        let kinds = Kinds::new(lowered.segments);
        let before =
            input.devices.iter().map(|device| kinds.times_before(input, device, &workload_times)).collect();
        let links = links(input);
        let rates = shared_rates(input);
        let transfer = |(link, rate)| transfer_times(input, point, &workload_times, link, rate);
        let transfers = links.iter().copied().zip(rates).map(transfer).collect();
        Self { input, point, workload_times, shape, lowered, before, transfers, links }
    }

    /// Returns the same problem for a different input with the same segments, for example a different
    /// workload.
    pub fn of_input<'b>(&self, input: &'b PlannerInput<'b>) -> Problem<'b>
    where
        'a: 'b,
    {
        let lowered: Arc<Lowered<'b>> = self.lowered.clone();
        Problem::new(input, lowered, self.shape.context, self.point)
    }

    /// Returns the solver's instance of this problem. The instance marks no device as required.
    pub fn instance(&self) -> Instance {
        let input = self.input;
        let staging = |from, to| self.link(from, to).routes.staging_bytes();
        let mut classes: Vec<u64> = pairs(input).map(|(from, to)| staging(from, to)).chain([0]).collect();
        classes.sort_unstable();
        classes.dedup();
        let class = |bytes| classes.binary_search(&bytes).unwrap_or(0);
        let costs = |times: &Times| self.workload_times.costs(times);
        let device = |device: usize| DeviceCosts {
            before: self.before[device].iter().map(costs).collect(),
            stage: self.stage_costs(device),
            entry: Costs::default(),
            exit: Costs { busy: 0.0, chunk: 0.0, ..costs(&self.token_return(device)) },
            reach: classes.iter().map(|&bytes| self.reach(device, bytes)).collect(),
        };
        let transfer = |(from, to): (usize, usize)| {
            let costs = costs(&self.transfer(from, to));
            (from != to).then(|| LinkCosts { costs, class: class(staging(from, to)) })
        };
        let constraints = input.constraints;
        let mut pins = vec![None; input.segments.len()];
        for pin in &constraints.pins {
            pins[pin.segment as usize] = index(input, &pin.device);
        }
        let is_excluded = |device: &DeviceFacts| constraints.excluded.contains(&device.label);
        Instance {
            segments: input.segments.len(),
            devices: (0..input.devices.len()).map(device).collect(),
            transfers: pairs(input).map(transfer).collect(),
            shared: self.shared(),
            score: self.workload_times.score(),
            pins,
            required: Vec::new(),
            excluded: input.devices.iter().map(is_excluded).collect(),
            max_stages: constraints.max_stages.map_or(usize::MAX, |most| most as usize),
            known: f64::INFINITY,
        }
    }

    /// Returns, for each first segment, the end of the longest run that fits on the device along with a
    /// staging ring of `staging` bytes.
    fn reach(&self, device: usize, staging: u64) -> Vec<usize> {
        let (segments, device) = (self.lowered.segments.len(), &self.input.devices[device]);
        let mut end = 0;
        let longest = |first: usize| {
            end = end.max(first);
            let sizes = &self.lowered.sizes;
            let fits = |end: usize| {
                let memory = sizes.stage(first..end, Streamed::NONE, &self.shape, staging, device);
                memory.total <= memory.available && sizes.too_large(first..end, &self.shape, device).is_none()
            };
            while end < segments && fits(end + 1) {
                end += 1;
            }
            end
        };
        (0..segments).map(longest).collect()
    }

    /// Returns the shared links for the solver. A link is listed once for each term of the score to which its
    /// load contributes.
    fn shared(&self) -> Vec<SharedBus> {
        let (busy_weight, chunk_weight) = self.workload_times.score().weights();
        let terms = [(Term::Busy, busy_weight), (Term::Chunk, chunk_weight)];
        let terms = terms.into_iter().filter(|(_, weight)| *weight > 0.0).map(|(term, _)| term);
        let bus = |term: Term, shared: &SharedLink| {
            let load = term.of(&self.workload_times.costs(&self.shared_times(shared)));
            let users = users(self.input, shared).map(|pair| (pair, load)).collect();
            SharedBus { term, users }
        };
        terms.flat_map(|term| self.input.links.shared.iter().map(move |shared| bus(term, shared))).collect()
    }

    /// Returns how long one transfer of each kind of micro-batch occupies the link `shared`.
    fn shared_times(&self, shared: &SharedLink) -> Times {
        let rate = shared.bandwidth_bytes_per_s.value;
        self.workload_times
            .times(|batch| transfer_bytes(self.input, self.point, batch.rows) as f64 / rate * 1e6)
    }

    /// Returns, for each shared link, how long the transfers of a placement occupy it in total.
    fn shared_by(&self, runs: &[Run]) -> Vec<Times> {
        let label = |run: &Run| self.input.devices[run.device].label.as_str();
        let occupied = |shared: &SharedLink| {
            let uses = |pair: &&[Run]| {
                shared.users.iter().any(|(from, to)| *from == label(&pair[0]) && *to == label(&pair[1]))
            };
            self.shared_times(shared) * runs.windows(2).filter(uses).count() as f64
        };
        self.input.links.shared.iter().map(occupied).collect()
    }

    /// Returns, for a device, the part of a stage's times that does not depend on the stage's segments.
    fn stage_times(&self, device: usize) -> Times {
        let (device, row_bytes) = (&self.input.devices[device], self.input.model.row_bytes);
        let wire_type = |rows: u32| BoundaryTime::new(self.point.wire_type, device, rows.into(), row_bytes);
        Times::always(device.stage_us.value)
            + self.workload_times.times(|batch| wire_type(batch.rows).sum_us())
    }

    /// Returns, for a device, the part of a stage's costs that does not depend on the stage's segments. The
    /// time to wake the device adds to the latency of a micro-batch, but keeps no resource busy.
    fn stage_costs(&self, device: usize) -> Costs {
        let (own, late) = (self.stage_times(device), self.hand_over(device));
        Costs { time: self.workload_times.costs(&(own + late)).time, ..self.workload_times.costs(&own) }
    }

    /// Estimates the costs of a stage that copies weights for `upload_us` microseconds.
    pub fn estimated_costs(&self, device: usize, segments: Range<usize>, upload_us: f64) -> Costs {
        let (own, late) = (self.estimated_times(device, segments, upload_us), self.hand_over(device));
        Costs { time: self.workload_times.costs(&(own + late)).time, ..self.workload_times.costs(&own) }
    }

    /// Returns the extra latency on a device for a micro-batch that is alone in the pipeline.
    fn hand_over(&self, device: usize) -> Times {
        Times::always(self.input.devices[device].hand_over_us.value)
    }

    /// Returns the times of the token return if `device` runs the last stage.
    fn token_return(&self, device: usize) -> Times {
        let device = &self.input.devices[device];
        self.workload_times.times(|batch| match batch.logit_rows {
            0 => 0.0,
            rows => device.token_return(rows, self.input.model.logit_row_bytes).value,
        })
    }

    pub fn link(&self, from: usize, to: usize) -> &'a LinkFacts {
        self.links[from * self.input.devices.len() + to]
    }

    /// Returns the times of a transfer between two devices.
    pub fn transfer(&self, from: usize, to: usize) -> Times {
        self.transfers[from * self.input.devices.len() + to]
    }

    /// Returns the memory of a stage. `before` is the device of the previous stage.
    pub fn memory(&self, run: &Run, before: Option<usize>) -> StageMemory {
        let staging = before.map_or(0, |before| self.link(before, run.device).routes.staging_bytes());
        let device = &self.input.devices[run.device];
        self.lowered.sizes.stage(run.segments.clone(), run.streamed(), &self.shape, staging, device)
    }

    /// Returns the memory of each stage of a placement. If a device has several stages, the memory that the
    /// earlier stages need is no longer available to the later ones.
    pub fn memories(&self, runs: &[Run]) -> Vec<StageMemory> {
        self.memories_with(runs, None)
    }

    /// Returns the memory of each stage of a placement, and of the prefill stage if there is one. The prefill
    /// stage comes last.
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

    /// Returns the average delay, in microseconds, that each prefill chunk after the first adds to a prompt
    /// of `chunks` chunks. Applies to placements in which devices have several stages. A device must run all
    /// of its stages for every chunk. Other devices process a chunk before the device's first stage and after
    /// its last stage. Chunks do not overtake each other.
    fn chunk_interval_us(&self, runs: &[Run], stages: &[Times], transfers: &[Times], chunks: f64) -> f64 {
        let slowest_stage_us = stages.iter().map(|times| times.chunk_us).fold(0.0, f64::max);
        if chunks <= 1.0 {
            return slowest_stage_us;
        }
        let part_us = |at: usize| stages[at].chunk_us + transfers.get(at).map_or(0.0, |times| times.chunk_us);
        let end_us = |(device, times): &(usize, Times)| {
            let is_here = |run: &Run| run.device == *device;
            let first = runs.iter().position(is_here).unwrap_or(0);
            let last = runs.iter().rposition(is_here).unwrap_or(0);
            let before_us: f64 = (0..first).map(part_us).sum();
            let after_us: f64 = (last + 1..runs.len()).map(part_us).sum();
            before_us + chunks * times.chunk_us + after_us
        };
        let busiest_us = device_times(runs.iter(), stages.iter()).iter().map(end_us).fold(0.0, f64::max);
        let sum_us: f64 = (0..runs.len()).map(part_us).sum();
        slowest_stage_us.max((busiest_us - sum_us) / (chunks - 1.0))
    }

    /// Returns the times of a stage. If it streams weights, the device copies the weights of a segment to an
    /// arena while it computes other segments.
    pub fn times(&self, run: &Run) -> Times {
        let parts = self.parts(run);
        let step_us = |computing: &dyn Fn(&Times) -> f64| step_us(&queue_parts(&parts, computing));
        match &parts[..] {
            [(_, times)] => *times,
            _ => Times::of_steps(step_us),
        }
    }

    /// Returns whether copies of weights wait for free arenas, so that the stage is slower than its copies
    /// and its computations alone.
    pub fn waits_for_arenas(&self, run: &Run) -> bool {
        let parts = self.parts(run);
        let floor_us = |computing: &dyn Fn(&Times) -> f64| floor_us(&queue_parts(&parts, computing));
        let (times, floor) = (self.times(run), Times::of_steps(floor_us));
        let used: &[fn(&Times) -> f64] =
            &[|times| times.decode_us, |times| times.chunk_us, |times| times.full_chunk_us];
        !run.streamed.is_empty() && used.iter().any(|of| of(&times) > of(&floor) * (1.0 + SAME))
    }

    /// Returns the parts of a stage: the arena, the time of the copy of the weights, and the times of the
    /// computation.
    fn parts(&self, run: &Run) -> Vec<(QueuePart, Times)> {
        let (device, before) = (&self.input.devices[run.device], &self.before[run.device]);
        let mut once = self.stage_times(run.device);
        let part = |part: crate::streaming::StagePart| {
            let bytes = part.arena.map(|_| self.lowered.sizes.streamed_bytes(&[part.segments.start]));
            let copy_us = bytes.map_or(0.0, |bytes| device.host_copy_us(bytes));
            let is_read = run.from_file.contains(&part.segments.start);
            let read_us = bytes.filter(|_| is_read).map_or(0.0, |bytes| device.file_read_us(bytes));
            let computing = before[part.segments.end] - before[part.segments.start];
            let computing = computing + std::mem::take(&mut once);
            (QueuePart { arena: part.arena, read_us, copy_us, compute_us: 0.0 }, computing)
        };
        parts(run.segments.clone(), &run.streamed, run.arenas()).into_iter().map(part).collect()
    }

    /// Estimates the times of a stage that runs `segments` on `device` and copies weights for `upload_us`
    /// microseconds. Assumes that no copy waits for an arena.
    pub fn estimated_times(&self, device: usize, segments: Range<usize>, upload_us: f64) -> Times {
        let before = &self.before[device];
        let computing = before[segments.end] - before[segments.start] + self.stage_times(device);
        if upload_us > 0.0 { computing.at_least(upload_us) } else { computing }
    }

    /// Predicts the times, the score and the rates of a placement.
    pub fn evaluate(&self, runs: &[Run]) -> Evaluation {
        self.evaluate_with(runs, None)
    }

    /// Predicts the times, the score and the rates of a placement with a prefill stage, if there is one. All
    /// prompts go through the prefill stage.
    pub fn evaluate_with(&self, runs: &[Run], prefill: Option<&Run>) -> Evaluation {
        // A prefill stage is one more part. Only this part has times for prefill chunks.
        let of_path = |times: Times| if prefill.is_some() { times.of_decode() } else { times };
        let stages: Vec<_> = runs.iter().map(|run| of_path(self.times(run))).collect();
        let transfers: Vec<_> =
            runs.windows(2).map(|p| of_path(self.transfer(p[0].device, p[1].device))).collect();
        let prefill_times = prefill.map(|run| self.times(run).of_prefill());
        let token_return = runs.last().map(|run| of_path(self.token_return(run.device))).unwrap_or_default()
            + prefill.map(|run| self.token_return(run.device).of_prefill()).unwrap_or_default();
        let late: Times = runs.iter().map(|run| of_path(self.hand_over(run.device))).sum::<Times>()
            + prefill.map(|run| self.hand_over(run.device).of_prefill()).unwrap_or_default();
        let parts = stages.iter().chain(&transfers).chain(&prefill_times).copied();
        let sum: Times = parts.sum::<Times>() + late + token_return;
        let shared: Vec<_> = self.shared_by(runs).into_iter().map(of_path).collect();
        let devices = device_times(runs.iter().chain(prefill), stages.iter().chain(&prefill_times));
        let parts = || devices.iter().map(|(_, times)| times).chain(&transfers).chain(&shared);
        let slowest = |of: fn(&Times) -> f64| parts().map(of).fold(0.0, f64::max);
        let workload_times = &self.workload_times;
        // A micro-batch starts its next decode step only after its previous step has left the pipeline.
        let decode_us = slowest(|t| t.decode_us);
        let round_us = sum.decode_us.max(f64::from(workload_times.decode_groups) * decode_us);
        let costs = workload_times.costs(&sum);
        // The delay that each chunk after the first adds to a prompt of `chunks` chunks.
        let slowest_chunk_us = |chunks: f64| match devices.len() == runs.len() || prefill.is_some() {
            true => slowest(|t| t.chunk_us),
            false => {
                let links = transfers.iter().chain(&shared).map(|times| times.chunk_us);
                links.fold(self.chunk_interval_us(runs, &stages, &transfers, chunks), f64::max)
            }
        };
        let busy = parts().map(|times| workload_times.busy_us(times)).fold(0.0, f64::max);
        let chunk = slowest_chunk_us(workload_times.chunks_in_a_row());
        let score_us = workload_times.score().of(&Costs { busy, chunk, ..costs });
        let apart_us = workload_times.apart_us(&sum, parts().copied());
        Evaluation {
            score_us,
            apart_us,
            expected_us: if self.input.is_tried() { score_us.max(apart_us) } else { score_us },
            decode_tokens_per_s: f64::from(workload_times.sequences) / round_us * 1e6,
            prefill_tokens_per_s: f64::from(workload_times.full_chunk_rows()) / slowest(|t| t.full_chunk_us)
                * 1e6,
            first_token_us: workload_times.first_token_us(&sum, slowest_chunk_us(workload_times.chunks)),
            token_us: round_us,
            decode_idle: 1.0 - f64::from(workload_times.decode_groups) * decode_us / round_us,
            stages,
            prefill: prefill_times,
            devices,
            transfers,
            shared,
            token_return,
        }
    }
}

/// Returns the parts of a stage with one of their times.
fn queue_parts(parts: &[(QueuePart, Times)], of: &dyn Fn(&Times) -> f64) -> Vec<QueuePart> {
    parts.iter().map(|(part, times)| QueuePart { compute_us: of(times), ..*part }).collect()
}

/// Returns the devices that a placement uses, each paired with the sum of its stages' times.
fn device_times<'a>(
    runs: impl Iterator<Item = &'a Run>,
    stages: impl Iterator<Item = &'a Times>,
) -> Vec<(usize, Times)> {
    let mut devices: Vec<(usize, Times)> = Vec::new();
    for (run, &times) in runs.zip(stages) {
        match devices.iter_mut().find(|(device, _)| *device == run.device) {
            Some((_, sum)) => *sum = *sum + times,
            None => devices.push((run.device, times)),
        }
    }
    devices
}

/// Groups of segments with equal costs. The time of each group is computed only once.
struct Kinds<'a> {
    first: Vec<&'a Segment>,
    of: Vec<usize>,
}

impl<'a> Kinds<'a> {
    fn new(segments: &'a [Segment]) -> Self {
        let mut known: Vec<SegmentKey> = Vec::new();
        let (mut first, mut of) = (Vec::new(), Vec::new());
        for segment in segments {
            let key = SegmentKey::from(segment);
            let kind = known.iter().position(|other| *other == key).unwrap_or_else(|| {
                known.push(key);
                first.push(segment);
                first.len() - 1
            });
            of.push(kind);
        }
        Self { first, of }
    }

    fn times_before(
        &self,
        input: &PlannerInput<'_>,
        device: &DeviceFacts,
        workload_times: &WorkloadTimes,
    ) -> Vec<Times> {
        let activations = input.limits.activations;
        let time = |segment: &&Segment| {
            workload_times.times(|batch| segment_time_us(segment, device, activations, batch))
        };
        let times: Vec<_> = self.first.iter().map(time).collect();
        let mut before = vec![Times::default()];
        for &kind in &self.of {
            before.push(before[before.len() - 1] + times[kind]);
        }
        before
    }
}

fn pairs(input: &PlannerInput<'_>) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
    let devices = input.devices.len();
    (0..devices).flat_map(move |from| (0..devices).map(move |to| (from, to)))
}

fn index(input: &PlannerInput<'_>, label: &str) -> Option<usize> {
    input.devices.iter().position(|device| device.label == label)
}

/// Returns the links between all pairs of devices, at `from * devices + to`.
fn links<'a>(input: &PlannerInput<'a>) -> Vec<&'a LinkFacts> {
    let devices = input.devices.len();
    let index: HashMap<_, _> =
        input.devices.iter().enumerate().map(|(at, d)| (d.label.as_str(), at)).collect();
    let mut links = vec![&input.links.other; devices * devices];
    // If a link is listed twice, the first entry counts, as in `Links::between`.
    for (from, to, facts) in input.links.known.iter().rev() {
        if let (Some(from), Some(to)) = (index.get(from.as_str()), index.get(to.as_str())) {
            links[from * devices + to] = facts;
        }
    }
    links
}

/// Returns the pairs (from, to) of devices whose transfers use a shared link.
fn users<'a>(
    input: &'a PlannerInput<'_>,
    shared: &'a SharedLink,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    shared.users.iter().filter_map(|(from, to)| Some((index(input, from)?, index(input, to)?)))
}

/// Returns, at `from * devices + to`, the lowest rate among the shared links that a transfer between the pair
/// uses, in bytes per second.
fn shared_rates(input: &PlannerInput<'_>) -> Vec<f64> {
    let devices = input.devices.len();
    let mut rates = vec![f64::INFINITY; devices * devices];
    for shared in &input.links.shared {
        for (from, to) in users(input, shared) {
            let rate = &mut rates[from * devices + to];
            *rate = rate.min(shared.bandwidth_bytes_per_s.value);
        }
    }
    rates
}

fn transfer_bytes(input: &PlannerInput<'_>, point: Point, rows: u32) -> u64 {
    u64::from(rows).saturating_mul(point.wire_type.row_bytes(input.model.row_bytes))
}

/// Returns the times of a transfer if no other transfer uses the same links. The rate is the lowest among the
/// link itself and the shared links on its path.
fn transfer_times(
    input: &PlannerInput<'_>,
    point: Point,
    workload_times: &WorkloadTimes,
    link: &LinkFacts,
    shared_rate: f64,
) -> Times {
    let time_us = |bytes: u64| {
        let shared_us = link.latency_us.value + bytes as f64 / shared_rate * 1e6;
        link.time_us(bytes).max(shared_us)
    };
    workload_times.times(|batch| time_us(transfer_bytes(input, point, batch.rows)))
}
