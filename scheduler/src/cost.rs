//! The static cost model: how long a segment takes on a device, how long a crossing takes, and how much memory a stage
//! needs, from facts about devices and links. Buffers count as devices take them, in whole size classes ([`class_bytes`]).
//!
//! A segment takes its launch overhead plus the larger of (bytes moved ÷ bandwidth) and (operations ÷ rate). Each figure
//! says where it comes from; those of [`DeviceFacts::assumed`] are orders of magnitude for a kind of device, good
//! enough to balance stages on like devices and to prefer a GPU over a CPU, and are to be replaced by measurements.
//!
//! This module must not know plans, and no backend: a device is its figures.

use crate::plan::StageMemory;
use ragtag_graph::{Segment, SegmentKind};
use ragtag_hal::AdapterKind;
use ragtag_hal::pool::class_bytes;
use ragtag_kernels::Activations;
use ragtag_kernels::params::{BLOCK_TOKENS, ParamsShape};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureSource {
    /// Typical of the kind of device; nobody looked.
    Assumed,
    /// The device's API or the operating system says so.
    Reported,
    /// Timed on this device.
    Measured,
    /// Given by the user.
    User,
}

impl fmt::Display for FigureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FigureSource::Assumed => "assumed",
            FigureSource::Reported => "reported",
            FigureSource::Measured => "measured",
            FigureSource::User => "given by the user",
        })
    }
}

/// A number with its source. Its unit is in the name of the field that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Where it comes from.
    pub source: FigureSource,
}

impl Figure {
    /// A figure that is typical of the kind of device.
    pub const fn assumed(value: f64) -> Self {
        Self { value, source: FigureSource::Assumed }
    }
}

/// What the planner knows of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its label, as in `cpu:0`.
    pub label: String,
    /// Bytes that a stage may take of its memory. Devices that share a memory (two CPU devices of one host) get shares
    /// of it here: the planner proves each device apart.
    pub memory_bytes: u64,
    /// Where [`DeviceFacts::memory_bytes`] comes from.
    pub memory_source: FigureSource,
    /// Rate at which weights stream from its memory.
    pub bandwidth_bytes_per_s: Figure,
    /// Rate of matrix products with f32 activations.
    pub exact_flops_per_s: Figure,
    /// Rate of matrix products with int8 activations.
    pub fast_flops_per_s: Figure,
    /// Overhead of one segment's dispatches.
    pub launch_us: Figure,
    /// Whether products of wide micro-batches take f16 activations, and f16 copies of quantised weights: more scratch.
    pub f16_products: bool,
}

impl DeviceFacts {
    /// Facts with assumed rates. `threads` counts for CPUs (and software devices) alone, whose rates are per thread:
    /// 8 GB/s and 16 GFLOP/s exact, 64 GFLOP/s fast, as one core of a current server or laptop gives or takes. The
    /// figures for GPUs are those of a middling card, and of a processor's own GPU on two memory channels.
    pub fn assumed(
        label: &str,
        kind: AdapterKind,
        threads: u32,
        memory_bytes: u64,
        memory_source: FigureSource,
    ) -> Self {
        let threads = f64::from(threads.max(1));
        let (bandwidth, exact, fast, launch_us) = match kind {
            AdapterKind::Discrete => (400e9, 8e12, 32e12, 60.0),
            AdapterKind::Integrated => (50e9, 1e12, 2e12, 80.0),
            AdapterKind::Cpu => (8e9 * threads, 16e9 * threads, 64e9 * threads, 30.0),
            // A GPU API on top of the processor reaches a fraction of what the processor gives when asked directly.
            AdapterKind::Software => (4e9 * threads, 4e9 * threads, 4e9 * threads, 200.0),
        };
        Self {
            label: label.into(),
            memory_bytes,
            memory_source,
            bandwidth_bytes_per_s: Figure::assumed(bandwidth),
            exact_flops_per_s: Figure::assumed(exact),
            fast_flops_per_s: Figure::assumed(fast),
            launch_us: Figure::assumed(launch_us),
            f16_products: false,
        }
    }

    /// The first figure that no device can have, if there is one: a rate is at least 1 a second and finite, an overhead
    /// at least 0 and at most 1000 seconds.
    pub fn nonsense(&self) -> Option<&'static str> {
        let rates = [
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s.value),
            ("exact_flops_per_s", self.exact_flops_per_s.value),
            ("fast_flops_per_s", self.fast_flops_per_s.value),
        ];
        let wrong = rates.into_iter().find(|(_, value)| !rate(*value)).map(|(name, _)| name);
        wrong.or((!overhead_us(self.launch_us.value)).then_some("launch_us"))
    }

    fn flops_per_s(&self, activations: Activations) -> f64 {
        match activations {
            Activations::F32 => self.exact_flops_per_s.value,
            Activations::Int8 | Activations::F16 => self.fast_flops_per_s.value,
        }
    }
}

// Bounds that keep every sum and product of the model finite.
fn rate(value: f64) -> bool {
    value.is_finite() && value >= 1.0
}

fn overhead_us(value: f64) -> bool {
    (0.0..=1e9).contains(&value)
}

/// What the planner knows of the way from one device to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// How an activation crosses.
    pub route: Route,
    /// Time of the smallest crossing.
    pub latency_us: Figure,
    /// Rate of large crossings.
    pub bandwidth_bytes_per_s: Figure,
}

impl LinkFacts {
    /// A host-staged link of assumed speed: the usual ring, 20 µs, 6 GB/s.
    pub const fn assumed() -> Self {
        Self {
            route: Route::HOST_STAGED,
            latency_us: Figure::assumed(20.0),
            bandwidth_bytes_per_s: Figure::assumed(6e9),
        }
    }

    /// Time in which `bytes` bytes cross, in microseconds.
    pub fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us.value + bytes as f64 / self.bandwidth_bytes_per_s.value * 1e6
    }

    /// The first figure that no link can have, as [`DeviceFacts::nonsense`].
    pub fn nonsense(&self) -> Option<&'static str> {
        if !overhead_us(self.latency_us.value) {
            Some("latency_us")
        } else if !rate(self.bandwidth_bytes_per_s.value) {
            Some("bandwidth_bytes_per_s")
        } else {
            None
        }
    }
}

/// The links between devices: those that are known, and what is assumed of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Known links: from, to, facts. Links are directed.
    pub known: Vec<(String, String, LinkFacts)>,
    /// Every other link.
    pub other: LinkFacts,
}

impl Default for Links {
    fn default() -> Self {
        Self { known: Vec::new(), other: LinkFacts::assumed() }
    }
}

impl Links {
    /// The link from one device to another.
    pub fn between(&self, from: &str, to: &str) -> &LinkFacts {
        self.known.iter().find(|(a, b, _)| a == from && b == to).map_or(&self.other, |(_, _, facts)| facts)
    }
}

/// The shape of a micro-batch, as far as costs depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroBatch {
    /// Tokens.
    pub rows: u32,
    /// Tokens of which logits are wanted.
    pub logit_rows: u32,
    /// Sequences that the rows belong to.
    pub sequences: u32,
    /// Positions that a row attends to, on average.
    pub positions: f64,
}

/// Time that a segment takes for a micro-batch, in microseconds. The head does nothing where no logits are wanted.
pub fn segment_time_us(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &MicroBatch,
) -> f64 {
    let rows = f64::from(match segment.kind {
        SegmentKind::Head => batch.logit_rows,
        SegmentKind::Embedding | SegmentKind::Block => batch.rows,
    });
    if rows == 0.0 {
        return 0.0;
    }
    // The keys and values of a sequence are read once for all its rows in the micro-batch.
    let bytes = segment.read_bytes as f64
        + rows * segment.read_bytes_per_row as f64
        + f64::from(batch.sequences) * batch.positions * segment.kv_bytes_per_position as f64;
    let flops =
        rows * (segment.flops_per_row as f64 + batch.positions * segment.flops_per_row_position as f64);
    let moving_s = bytes / device.bandwidth_bytes_per_s.value;
    let computing_s = flops / device.flops_per_s(activations);
    device.launch_us.value + moving_s.max(computing_s) * 1e6
}

/// What the size of a stage depends on besides its segments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageShape {
    /// Longest sequence, in positions.
    pub context: u32,
    /// Sequences alive at once.
    pub sequences: u32,
    /// Most rows of a micro-batch.
    pub rows: u32,
    /// Most logit rows of a micro-batch.
    pub logit_rows: u32,
    /// Micro-batches that the stage holds at once.
    pub slots: u32,
    /// Bytes of one row of activations.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
}

impl StageShape {
    /// Cache blocks that one sequence of the full context fills.
    pub fn blocks(&self) -> u64 {
        u64::from(self.context).div_ceil(BLOCK_TOKENS as u64)
    }

    /// Bytes of keys and values of a segment that keeps `bytes_per_position` of them: a buffer for each.
    pub fn kv_bytes(&self, bytes_per_position: u64) -> u64 {
        let positions = (self.blocks() * BLOCK_TOKENS as u64).saturating_mul(u64::from(self.sequences));
        class_bytes(bytes_per_position.div_ceil(2).saturating_mul(positions)).saturating_mul(2)
    }

    /// Bytes of the slots of a stage; the last one holds logits, too.
    pub fn slot_bytes(&self, last: bool) -> u64 {
        let params = ParamsShape {
            rows: self.rows,
            logit_rows: self.logit_rows,
            sequences: self.sequences,
            table_blocks: u32::try_from(self.blocks()).unwrap_or(u32::MAX),
        };
        let logits = if last { u64::from(self.logit_rows).saturating_mul(self.logit_row_bytes) } else { 0 };
        let rows = u64::from(self.rows).saturating_mul(self.row_bytes);
        let buffers = [params.bytes(), rows, logits].map(class_bytes);
        buffers.into_iter().fold(0, u64::saturating_add).saturating_mul(u64::from(self.slots))
    }
}

/// Memory that every run of segments of a model needs, so that a planner may ask for many runs.
#[derive(Clone, Debug)]
pub struct RunSizes {
    segments: usize,
    /// For each run `first ..= last`, at `first * segments + last`: bytes of its tensors, each counted once.
    weights: Vec<u64>,
    /// The same for scratch.
    scratch: Vec<u64>,
    /// The same on devices with f16 products.
    wide_scratch: Vec<u64>,
    /// For each number of bytes per position that segments keep: how many of those before each segment do.
    kv_before: Vec<(u64, Vec<u64>)>,
}

impl RunSizes {
    /// Sizes of all runs of these segments.
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
            kv_before: Vec::new(),
        };
        for first in 0..n {
            let mut kept = vec![false; ids.len()];
            let (mut weights, mut scratch, mut wide_scratch) = (0u64, 0u64, 0u64);
            for last in first..n {
                for &(id, bytes) in &tensors[last] {
                    if !std::mem::replace(&mut kept[id], true) {
                        weights = weights.saturating_add(bytes);
                    }
                }
                scratch = scratch.max(class_bytes(segments[last].scratch_bytes));
                wide_scratch = wide_scratch.max(class_bytes(segments[last].wide_scratch_bytes));
                sizes.weights[first * n + last] = weights;
                sizes.scratch[first * n + last] = scratch;
                sizes.wide_scratch[first * n + last] = wide_scratch;
            }
        }
        let kinds: BTreeSet<u64> =
            segments.iter().map(|s| s.kv_bytes_per_position).filter(|&b| b > 0).collect();
        for kind in kinds {
            let mut before = vec![0];
            for segment in segments {
                let so_far = before[before.len() - 1];
                before.push(so_far + u64::from(segment.kv_bytes_per_position == kind));
            }
            sizes.kv_before.push((kind, before));
        }
        sizes
    }

    /// Bytes of keys and values in the segments `first .. end`.
    pub fn kv_bytes(&self, first: usize, end: usize, shape: &StageShape) -> u64 {
        let of_kind = |(kind, before): &(u64, Vec<u64>)| {
            shape.kv_bytes(*kind).saturating_mul(before[end] - before[first])
        };
        self.kv_before.iter().map(of_kind).fold(0, u64::saturating_add)
    }

    /// What a stage of the segments `run` (at least one) takes of a device's memory.
    pub fn stage(
        &self,
        run: Range<usize>,
        shape: &StageShape,
        staging: u64,
        device: &DeviceFacts,
    ) -> StageMemory {
        let at = run.start * self.segments + run.end - 1;
        let weights = self.weights[at];
        let scratch = if device.f16_products { self.wide_scratch[at] } else { self.scratch[at] };
        let kv = self.kv_bytes(run.start, run.end, shape);
        let slots = shape.slot_bytes(run.end == self.segments);
        let available = device.memory_bytes;
        let total = [weights, kv, scratch, slots, staging].into_iter().fold(0, u64::saturating_add);
        StageMemory { weights, kv, scratch, slots, staging, total, available }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_graph::segment::SegmentTensor;

    fn segment(kind: SegmentKind, tensors: &[(&str, u64)]) -> Segment {
        Segment {
            kind,
            name: "segment".into(),
            tensors: tensors
                .iter()
                .map(|&(name, resident_bytes)| SegmentTensor { name: name.into(), resident_bytes })
                .collect(),
            flops_per_row: 2_000_000,
            flops_per_row_position: 1_000,
            read_bytes: 1_000_000,
            read_bytes_per_row: 100,
            kv_bytes_per_position: 512,
            scratch_bytes: 4096,
            wide_scratch_bytes: 8192,
        }
    }

    fn device() -> DeviceFacts {
        DeviceFacts {
            label: "cpu:0".into(),
            memory_bytes: 1 << 30,
            memory_source: FigureSource::User,
            bandwidth_bytes_per_s: Figure::assumed(1e9),
            exact_flops_per_s: Figure::assumed(1e9),
            fast_flops_per_s: Figure::assumed(4e9),
            launch_us: Figure::assumed(10.0),
            f16_products: false,
        }
    }

    #[test]
    fn a_segment_takes_launch_plus_the_slower_of_moving_and_computing() {
        let block = segment(SegmentKind::Block, &[]);
        let batch = |rows, positions| MicroBatch { rows, logit_rows: 1, sequences: 1, positions };
        let time = |activations, batch: MicroBatch| segment_time_us(&block, &device(), activations, &batch);
        // One row: 1 000 000 + 100 + 0 bytes at 1000 bytes/µs, 2 000 000 operations at 1000 (or 4000) a µs.
        assert_eq!(time(Activations::F32, batch(1, 0.0)), 10.0 + 2000.0);
        assert_eq!(time(Activations::Int8, batch(1, 0.0)), 10.0 + 1000.1);
        // Keys and values are read once a sequence, operations are done for each row.
        assert!((time(Activations::Int8, batch(1, 100.0)) - (10.0 + 1051.3)).abs() < 1e-9);
        assert_eq!(time(Activations::F32, batch(8, 100.0)), 10.0 + 8.0 * 2100.0);
        assert_eq!(time(Activations::F32, batch(0, 100.0)), 0.0);
    }

    #[test]
    fn the_head_costs_by_logit_rows() {
        let head = segment(SegmentKind::Head, &[]);
        let time = |rows, logit_rows| {
            let batch = MicroBatch { rows, logit_rows, sequences: 1, positions: 0.0 };
            segment_time_us(&head, &device(), Activations::F32, &batch)
        };
        assert_eq!(time(128, 0), 0.0);
        assert_eq!(time(128, 1), time(1, 1));
        assert!(time(128, 8) > time(128, 1));
    }

    #[test]
    fn a_shared_tensor_counts_once_in_a_stage() {
        let segments = [
            segment(SegmentKind::Embedding, &[("embedding", 1000)]),
            segment(SegmentKind::Block, &[("block", 10)]),
            segment(SegmentKind::Head, &[("norm", 1), ("embedding", 1000)]),
        ];
        let sizes = RunSizes::new(&segments);
        let shape = StageShape {
            context: 17,
            sequences: 3,
            rows: 4,
            logit_rows: 2,
            slots: 2,
            row_bytes: 100,
            logit_row_bytes: 1000,
        };
        let weights = |first, end| sizes.stage(first..end, &shape, 0, &device()).weights;
        // 1000 bytes take 1024, and small ones 256 each.
        assert_eq!(weights(0, 3), 1024 + 256 + 256);
        assert_eq!(weights(0, 2), 1024 + 256);
        assert_eq!(weights(1, 3), 1024 + 256 + 256);
        assert_eq!(weights(2, 3), 1024 + 256);

        let stage = sizes.stage(1..3, &shape, 77, &device());
        // 17 positions fill two blocks of 16; each of the two segments has a buffer of keys and one of values.
        assert_eq!(stage.kv, 2 * 2 * class_bytes(256 * 3 * 32));
        assert_eq!(stage.scratch, 4096);
        let params = 4 * (4 + 3 * 4 + 2 + 3 * 2);
        assert!(params < 256);
        assert_eq!(stage.slots, 2 * (256 + 416 + 2048));
        assert_eq!(sizes.stage(0..2, &shape, 0, &device()).slots, 2 * (256 + 416));
        assert_eq!(stage.total, stage.weights + stage.kv + stage.scratch + stage.slots + 77);
        assert_eq!(stage.available, 1 << 30);
        let wide = sizes.stage(1..3, &shape, 77, &DeviceFacts { f16_products: true, ..device() });
        assert_eq!((wide.scratch, wide.total), (8192, stage.total + 4096));
    }

    #[test]
    fn sizes_beyond_64_bits_saturate() {
        let mut huge = segment(SegmentKind::Block, &[("a", u64::MAX), ("b", u64::MAX)]);
        huge.kv_bytes_per_position = u64::MAX;
        let shape = StageShape {
            context: u32::MAX,
            sequences: u32::MAX,
            rows: u32::MAX,
            logit_rows: u32::MAX,
            slots: u32::MAX,
            row_bytes: u64::MAX,
            logit_row_bytes: u64::MAX,
        };
        let sizes = RunSizes::new(&[huge]);
        assert_eq!(sizes.kv_bytes(0, 1, &shape), u64::MAX);
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(device().nonsense(), None);
        let with = |change: &dyn Fn(&mut DeviceFacts)| {
            let mut facts = device();
            change(&mut facts);
            facts.nonsense()
        };
        assert_eq!(with(&|d| d.bandwidth_bytes_per_s.value = f64::NAN), Some("bandwidth_bytes_per_s"));
        assert_eq!(with(&|d| d.exact_flops_per_s.value = 0.0), Some("exact_flops_per_s"));
        assert_eq!(with(&|d| d.fast_flops_per_s.value = f64::INFINITY), Some("fast_flops_per_s"));
        assert_eq!(with(&|d| d.launch_us.value = -1.0), Some("launch_us"));
        let mut link = LinkFacts::assumed();
        assert_eq!(link.nonsense(), None);
        link.latency_us.value = f64::NAN;
        assert_eq!(link.nonsense(), Some("latency_us"));
    }

    #[test]
    fn links_are_directed_and_others_assumed() {
        let mut fast = LinkFacts::assumed();
        fast.bandwidth_bytes_per_s = Figure { value: 60e9, source: FigureSource::Measured };
        let links = Links { known: vec![("a".into(), "b".into(), fast.clone())], ..Links::default() };
        assert_eq!(links.between("a", "b"), &fast);
        assert_eq!(links.between("b", "a"), &LinkFacts::assumed());
        assert_eq!(LinkFacts::assumed().time_us(6_000_000), 20.0 + 1000.0);
    }
}
