//! The search over contiguous splits: dynamic programming over (segments placed, device of the last stage).
//!
//! For each number of stages the table keeps, for each end and last device, the best way to get there. A stage is
//! considered only where its memory fits, so the best of the table is proved as it is found.
//!
//! This module must not know what times mean or how plans are told.

use super::evaluate::{Pace, Times};
use super::{Choice, PlannerInput, Shortage};
use crate::cost::{LinkFacts, RunSizes, StageShape};
use crate::plan::StageMemory;
use crate::split::Span;
use std::ops::Range;

/// What counts as the same time: sums in another order differ by less.
pub(super) const MARGIN: f64 = 1e-9;

/// A run of segments on a device: at least one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Index into the devices.
    pub device: usize,
    /// The segments.
    pub segments: Range<usize>,
}

impl Run {
    pub fn span(&self) -> Span {
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span::new(number(self.segments.start), number(self.segments.end - 1))
            .expect("runs hold a segment at least")
    }
}

/// What a table minimises.
#[derive(Clone, Copy)]
pub(super) enum Goal<'a> {
    /// The busiest stage or crossing, then the sum.
    Bottleneck(&'a Times<'a>),
    /// The sum of stages and crossings.
    Sum(&'a Times<'a>),
    /// The bytes that are missing, all devices together; the only goal under which a stage may lack memory.
    Missing,
}

/// What was minimised, then what decides between equals.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Value(pub f64, pub f64);

#[derive(Clone, Copy)]
struct Cell {
    value: Value,
    /// Where the last stage begins, and the device before it.
    first: usize,
    before: usize,
}

/// One number of stages: the best way to each (end, device), at `end * devices + device`.
type Layer = Vec<Option<Cell>>;

/// An instance of the planning problem at a fixed context.
pub(super) struct Search<'a> {
    pub input: &'a PlannerInput<'a>,
    pub shape: StageShape,
    sizes: &'a RunSizes,
    /// Bytes of the staging ring for each pair of devices, at `from * devices + to`.
    staging: Vec<u64>,
}

impl<'a> Search<'a> {
    pub fn new(input: &'a PlannerInput<'a>, sizes: &'a RunSizes, context: u32) -> Self {
        let limits = &input.limits;
        let shape = StageShape {
            context,
            sequences: limits.sequences,
            rows: limits.chunk,
            logit_rows: limits.logit_rows,
            slots: limits.slots,
            row_bytes: input.model.row_bytes,
            logit_row_bytes: input.model.logit_row_bytes,
        };
        let mut search = Self { input, shape, sizes, staging: Vec::new() };
        let devices = 0..input.devices.len();
        let ring = |from, to| search.link(from, to).route.staging_bytes();
        search.staging = devices
            .clone()
            .flat_map(|from| devices.clone().map(move |to| (from, to)))
            .map(|(from, to)| ring(from, to))
            .collect();
        search
    }

    pub fn link(&self, from: usize, to: usize) -> &LinkFacts {
        self.input.links.between(&self.input.devices[from].label, &self.input.devices[to].label)
    }

    /// What a stage takes, given the device of the stage before it.
    pub fn memory(&self, run: &Run, before: Option<usize>) -> StageMemory {
        let staging = before.map_or(0, |before| self.staging[before * self.input.devices.len() + run.device]);
        self.sizes.stage(run.segments.clone(), &self.shape, staging, &self.input.devices[run.device])
    }

    /// Proves the memory of a placement.
    pub fn prove(&self, runs: &[Run]) -> Result<(), Vec<Shortage>> {
        let mut shortages = Vec::new();
        for (at, run) in runs.iter().enumerate() {
            let memory = self.memory(run, at.checked_sub(1).map(|before| runs[before].device));
            if memory.total > memory.available {
                let device = self.input.devices[run.device].label.clone();
                shortages.push(Shortage { device, segments: run.span(), memory });
            }
        }
        if shortages.is_empty() { Ok(()) } else { Err(shortages) }
    }

    /// What the placement that comes closest to fitting lacks; nothing if one fits.
    pub fn closest(&self) -> Vec<Shortage> {
        let table = Table::new(self, Goal::Missing, self.most_stages(), None);
        let best = (1..=self.most_stages())
            .filter_map(|stages| table.best(stages))
            .reduce(|best, other| if other.0 < best.0 { other } else { best });
        best.and_then(|(_, runs)| self.prove(&runs).err()).unwrap_or_default()
    }

    /// The best placement; with `with`, the best one that this device is part of.
    pub fn choose(&self, with: Option<usize>) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        let mut fewest = 1;
        while fewest <= self.most_stages() {
            let pace = Pace::new(self.input, self.shape.context, fewest);
            // Numbers of stages with the same pace share a table.
            let same = |stages: &usize| Pace::new(self.input, self.shape.context, *stages) == pace;
            let most = (fewest..=self.most_stages()).take_while(same).last().unwrap_or(fewest);
            let times = Times::new(self.input, &pace);
            for goal in [Goal::Bottleneck(&times), Goal::Sum(&times)] {
                let table = Table::new(self, goal, most, with);
                for (_, runs) in (fewest..=most).filter_map(|stages| table.best(stages)) {
                    let evaluation = times.evaluate(&runs);
                    // A stage more must earn its keep beyond what rounding may give it.
                    let keeps = |b: &Choice| {
                        let needed = if runs.len() > b.runs.len() { 1.0 - MARGIN } else { 1.0 };
                        evaluation.score_us >= b.evaluation.score_us * needed
                    };
                    if !best.as_ref().is_some_and(keeps) {
                        best = Some(Choice { runs, pace: pace.clone(), evaluation });
                    }
                }
            }
            fewest = most + 1;
        }
        best
    }

    pub fn most_stages(&self) -> usize {
        self.input.devices.len().min(self.input.segments.len())
    }
}

/// The dynamic programme's table for up to a number of stages.
pub(super) struct Table<'a> {
    search: &'a Search<'a>,
    goal: Goal<'a>,
    with: Option<usize>,
    layers: Vec<Layer>,
}

impl<'a> Table<'a> {
    /// With `with`, only placements that this device is part of.
    pub fn new(search: &'a Search<'a>, goal: Goal<'a>, stages: usize, with: Option<usize>) -> Self {
        let mut table = Self { search, goal, with, layers: Vec::new() };
        let first = table.first_layer();
        table.layers.push(first);
        for _ in 1..stages {
            let next = table.next_layer();
            table.layers.push(next);
        }
        table
    }

    fn devices(&self) -> usize {
        self.search.input.devices.len()
    }

    fn segments(&self) -> usize {
        self.search.input.segments.len()
    }

    fn first_layer(&self) -> Layer {
        let mut layer = vec![None; (self.segments() + 1) * self.devices()];
        for device in 0..self.devices() {
            if self.with.is_some_and(|with| with < device) {
                continue;
            }
            self.extend(&mut layer, None, 0, device);
        }
        layer
    }

    fn next_layer(&self) -> Layer {
        let previous = self.layers.last().expect("the first layer is there");
        let mut layer = vec![None; previous.len()];
        for first in 1..self.segments() {
            for before in 0..self.devices() {
                let Some(cell) = previous[first * self.devices() + before] else { continue };
                for device in before + 1..self.devices() {
                    if self.with.is_some_and(|with| before < with && with < device) {
                        break;
                    }
                    self.extend(&mut layer, Some((cell.value, before)), first, device);
                }
            }
        }
        layer
    }

    /// Enters every stage that begins at `first` on `device`, behind what `before` holds.
    fn extend(&self, layer: &mut Layer, before: Option<(Value, usize)>, first: usize, device: usize) {
        let so_far = before.map_or(Value(0.0, 0.0), |(value, _)| value);
        for end in first + 1..=self.segments() {
            let run = Run { device, segments: first..end };
            let Some(value) = self.with_stage(so_far, before.map(|(_, device)| device), &run) else {
                // Memory only grows with the run.
                break;
            };
            let cell = &mut layer[end * self.devices() + device];
            if cell.is_none_or(|c| value < c.value) {
                *cell = Some(Cell { value, first, before: before.map_or(device, |(_, device)| device) });
            }
        }
    }

    /// The value of a placement with one more stage; `None` if the stage does not fit.
    fn with_stage(&self, so_far: Value, before: Option<usize>, run: &Run) -> Option<Value> {
        let memory = self.search.memory(run, before);
        let missing = memory.total.saturating_sub(memory.available);
        let times = match self.goal {
            Goal::Missing => return Some(Value(so_far.0 + missing as f64, 0.0)),
            Goal::Bottleneck(times) | Goal::Sum(times) => times,
        };
        if missing > 0 {
            return None;
        }
        let stage = times.request_us(run.device, run.segments.start, run.segments.end);
        let crossing = before.map_or(0.0, |before| times.crossing(before, run.device).request_us);
        let sum = so_far.1 + crossing + stage;
        let bottleneck = so_far.0.max(crossing).max(stage);
        Some(if matches!(self.goal, Goal::Bottleneck(_)) { Value(bottleneck, sum) } else { Value(sum, sum) })
    }

    /// The best placement of all segments in exactly this many stages.
    pub fn best(&self, stages: usize) -> Option<(Value, Vec<Run>)> {
        let (devices, all) = (self.devices(), self.segments());
        let allowed = |device: &usize| self.with.is_none_or(|with| with <= *device);
        let last = &self.layers[stages - 1];
        let mut device =
            (0..devices).filter(allowed).filter(|d| last[all * devices + d].is_some()).reduce(|a, b| {
                let value = |d: usize| last[all * devices + d].map(|c| c.value);
                if value(b) < value(a) { b } else { a }
            })?;
        let value = last[all * devices + device]?.value;
        let mut runs = Vec::new();
        let mut end = all;
        for layer in self.layers[..stages].iter().rev() {
            let cell = layer[end * devices + device]?;
            runs.push(Run { device, segments: cell.first..end });
            (end, device) = (cell.first, cell.before);
        }
        runs.reverse();
        Some((value, runs))
    }
}
