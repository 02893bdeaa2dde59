//! Describes the planning problem at one point of the search grid: the times of all stages and transfers, and
//! the instance for the solver. This module knows nothing about the search or the explanation.

mod evaluation;
mod links;
mod memory;
mod run;

use super::solver::{Costs, DeviceCosts, Instance, LinkCosts, SharedBus, Term};
use super::workload_times::{Point, Times, WorkloadTimes};
use super::{ModelFacts, PlannerInput, pool};
use crate::cost::{
    BoundaryTime, DeviceFacts, LinkFacts, RunSizes, SegmentKey, SharedLink, StageCapacity, Streamed,
    kind_time,
};
pub(super) use evaluation::Evaluation;
use links::{index, links, network_us, pairs, shared_rates, transfer_bytes, transfer_times, users};
use ragtag_graph::Segment;
pub(super) use run::Run;
use std::ops::Range;
use std::sync::Arc;

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

/// The planning problem at one point of the grid, for a fixed context.
#[derive(Clone)]
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
            kv_blocks: 0,
            rows: point.chunk,
            window: lowered.segments.iter().filter_map(|segment| segment.window).max(),
            state_bytes: lowered.segments.iter().flat_map(|segment| segment.state_bytes).sum(),
            logit_rows: limits.logit_rows_of(point.groups, point.chunk),
            slots: limits.slots,
            row_bytes: input.model.row_bytes,
            wire_type: point.wire_type,
            logit_row_bytes: input.model.logit_row_bytes(),
            sequence_frequencies: input.model.sequence_frequencies,
            verified: limits.verified,
        };
        let kv_blocks = pool::needed_blocks(input, &lowered.sizes, &shape);
        let shape = StageCapacity { kv_blocks, ..shape };
        let workload_times = WorkloadTimes::new(input, context, point);
        Self::of_batches(input, lowered, shape, point, workload_times)
    }

    fn of_batches(
        input: &'a PlannerInput<'a>,
        lowered: Arc<Lowered<'a>>,
        shape: StageCapacity,
        point: Point,
        workload_times: WorkloadTimes,
    ) -> Self {
        let before = |device| times_before(input, lowered.segments, device, &workload_times);
        let before = input.devices.iter().map(before).collect();
        let links = links(input);
        let rates = shared_rates(input);
        let transfer = |(link, rate)| transfer_times(input, point, &workload_times, link, rate);
        let transfers = links.iter().copied().zip(rates).map(transfer).collect();
        Self { input, point, workload_times, shape, lowered, before, transfers, links }
    }

    /// Returns the same problem in which full chunks have the rows of a decode micro-batch as well as
    /// `prompt_rows` prompt rows.
    pub fn mixing(&self, prompt_rows: u32) -> Self {
        let workload_times = self.workload_times.mixing(prompt_rows);
        Self::of_batches(self.input, Arc::clone(&self.lowered), self.shape, self.point, workload_times)
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

    /// Returns the same problem with another number of blocks in the KV cache.
    pub fn with_kv_blocks(&self, kv_blocks: u32) -> Self {
        Self { shape: StageCapacity { kv_blocks, ..self.shape }, ..self.clone() }
    }

    /// Returns the solver's instance of this problem. The instance marks no device as required.
    pub fn instance(&self) -> Instance {
        let input = self.input;
        let staging = |from, to| self.link(from, to).routes.staging_bytes();
        let mut classes: Vec<u64> = pairs(input).map(|(from, to)| staging(from, to)).chain([0]).collect();
        classes.sort_unstable();
        classes.dedup();
        let class = |bytes| classes.binary_search(&bytes).expect("each link has a class");
        let costs = |times: &Times| self.workload_times.costs(times);
        let device = |device: usize| DeviceCosts {
            before: self.before[device].iter().map(costs).collect(),
            stage: self.stage_costs(device),
            entry: Costs { busy: 0.0, chunk: 0.0, ..costs(&self.entry(device)) },
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
            pins[pin.segment as usize] = Some(index(input, &pin.device).expect("the checks know the device"));
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
        self.costs_on(device, self.stage_times(device))
    }

    /// Returns the costs of a stage on a device, from the times for which it keeps the device busy.
    fn costs_on(&self, device: usize, times: Times) -> Costs {
        let late = times + self.hand_over(device);
        Costs { time: self.workload_times.costs(&late).time, ..self.workload_times.costs(&times) }
    }

    /// Estimates the costs of a stage that copies weights for `upload_us` microseconds.
    pub fn estimated_costs(&self, device: usize, segments: Range<usize>, upload_us: f64) -> Costs {
        self.costs_on(device, self.estimated_times(device, segments, upload_us))
    }

    /// Returns the extra latency on a device for a micro-batch that is alone in the pipeline.
    fn hand_over(&self, device: usize) -> Times {
        Times::always(self.input.devices[device].hand_over_us.value)
    }

    /// Returns how long a micro-batch is under way from the coordinator to `device`, if it runs the first stage.
    fn entry(&self, device: usize) -> Times {
        Times::always(network_us(self.input, device))
    }

    /// Returns the times of the token return if `device` runs the last stage.
    fn token_return(&self, device: usize) -> Times {
        let network_us = network_us(self.input, device);
        let device = &self.input.devices[device];
        self.workload_times.times(|batch| match batch.logit_rows {
            0 => 0.0,
            rows => network_us + device.token_return(rows, ModelFacts::RETURN_ROW_BYTES).value,
        })
    }

    pub fn link(&self, from: usize, to: usize) -> &'a LinkFacts {
        self.links[from * self.input.devices.len() + to]
    }

    /// Returns the times of a transfer between two devices.
    pub fn transfer(&self, from: usize, to: usize) -> Times {
        self.transfers[from * self.input.devices.len() + to]
    }
}

/// Returns, at index `i`, the sum of the times of the segments `0 .. i` on a device. Computes the time of equal
/// segments once.
fn times_before(
    input: &PlannerInput<'_>,
    segments: &[Segment],
    device: &DeviceFacts,
    workload_times: &WorkloadTimes,
) -> Vec<Times> {
    let mut known: Vec<(SegmentKey, Times)> = Vec::new();
    let mut before = vec![Times::default()];
    for key in segments.iter().map(SegmentKey::from) {
        let times = known.iter().find(|(other, _)| *other == key).map(|(_, times)| *times);
        let times = times.unwrap_or_else(|| {
            let time = |batch: &_| kind_time(&key, device, input.limits.activations, batch).value;
            known.push((key, workload_times.times(time)));
            known[known.len() - 1].1
        });
        before.push(before[before.len() - 1] + times);
    }
    before
}
