//! Measured profiles: times of a model's segments on one device, and estimates for other micro-batch shapes.
//!
//! For a measured point, a profile returns the measured time. Row counts are measured on a logarithmic grid,
//! and the times between them are interpolated linearly. At a given row count, time is linear in the attended
//! positions. For segment kinds without measurements, the planner uses the roofline fitted to the other
//! kinds.
//!
//! This module knows nothing about measuring or storing profiles. A profile is plain data, serialised as JSON
//! with its own format version.

use super::figure::{Figure, FigureSource, is_overhead_us, is_rate};
use super::time::BatchShape;
use ragtag_graph::{ExpertReads, Segment, SegmentKind};
use ragtag_kernels::{Activations, KvType};
use serde::{Deserialize, Serialize};

/// Format version that this build reads and writes.
pub const PROFILE_VERSION: u32 = 5;

/// Minimum distance between the positions of two samples of a line. It keeps all slopes finite.
const MIN_POSITIONS: f64 = 1e-3;

/// Maximum number of samples in a profile. A calibration takes far fewer, and each prediction reads some of them.
const MAX_SAMPLES: usize = 1 << 14;

/// Segment times of one model shape on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub ragtag_profile: u32,
    /// Conditions under which the times are valid.
    pub identity: ProfileIdentity,
    /// Time of the measurement, in seconds since 1970.
    pub measured_unix_s: u64,
    /// Largest sizes that the calibration was asked to measure. On a slow device, it skips the largest ones.
    pub timed_for: TimedFor,
    /// Fixed overhead per micro-batch and stage, in microseconds. Does not depend on the number of segments
    /// in the stage.
    pub stage_us: f64,
    /// Extra latency of a stage if its micro-batch is alone in the pipeline, in microseconds. 0 if not
    /// measured.
    pub hand_over_us: f64,
    /// Time of the smallest copy from the device to host memory, in microseconds.
    pub host_latency_us: f64,
    /// Rate of large copies from host memory to the device.
    pub host_bandwidth_bytes_per_s: f64,
    /// Time of the token return from the last stage to the first.
    pub token_return: TokenReturn,
    /// Roofline fitted to all measured times. `None` if no time was measured.
    pub roofline: Option<Roofline>,
    /// Times of each kind of segment.
    pub kinds: Vec<KindProfile>,
}

/// Conditions of a measurement. If the driver, the kernels or the model shape change, the profile must be
/// measured again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileIdentity {
    /// Device label, for example `cuda:0`. For CPU devices it is the API name `cpu`, because equal parts of a
    /// CPU share a profile.
    pub device: String,
    /// Device name.
    pub name: String,
    /// Driver name and version.
    pub driver: String,
    /// Number of threads or compute units.
    pub units: u32,
    /// Number of devices on the same CPU that were active during the measurement, including this one. They
    /// share caches and memory bandwidth.
    pub together: u32,
    /// Digest of the kernels.
    pub kernels: String,
    /// Digest of the model's shape: architecture, tensor types and shapes.
    pub shape: String,
    /// Activation type.
    pub activations: Activations,
    /// Element type of the KV cache.
    pub kv: KvType,
}

/// Largest sizes requested for a calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedFor {
    /// Number of rows of the longest prefill chunk.
    pub chunk: u32,
    /// Maximum number of sequences that decode together.
    pub sequences: u32,
}

impl TimedFor {
    /// Returns whether a calibration for these sizes also covers `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.chunk >= other.chunk && self.sequences >= other.sequences
    }
}

/// Latency of the token return: the time from the end of the last stage to the start of the next step of the
/// same sequences. It includes copying logits to the host, sampling, and forming a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenReturn {
    /// Fixed part, in microseconds.
    pub latency_us: f64,
    /// Time per row of logits, in microseconds.
    pub row_us: f64,
}

/// Highest measured rates and shortest measured time. Together, they give a lower bound on the time of every
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Highest rate of memory traffic that any segment reached.
    pub bandwidth_bytes_per_s: f64,
    /// Highest rate of arithmetic that any segment reached.
    pub flops_per_s: f64,
    /// Shortest time of any segment, in microseconds.
    pub launch_us: f64,
}

/// Properties of a segment that determine its time on a given device for a given micro-batch. Segments with
/// equal keys take equal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentKey {
    /// Kind of segment.
    pub kind: SegmentKind,
    /// The field of the same name in [`Segment`].
    pub flops_per_row: u64,
    /// The field of the same name in [`Segment`].
    pub flops_per_row_position: u64,
    /// The field of the same name in [`Segment`]. Together with the operation counts, it distinguishes tensor
    /// types.
    pub read_bytes: u64,
    /// The field of the same name in [`Segment`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertReads>,
    /// The field of the same name in [`Segment`].
    pub read_bytes_per_row: u64,
    /// The field of the same name in [`Segment`].
    pub kv_bytes_per_position: u64,
    /// The field of the same name in [`Segment`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Bytes of the state of a sequence.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state_bytes: u64,
}

// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// The times of one kind of segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindProfile {
    /// Properties that identify the kind.
    pub key: SegmentKey,
    /// Samples, sorted by rows, then by sequences, then by positions.
    pub samples: Vec<TimeSample>,
}

/// Micro-batch shape for which a segment was timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimePoint {
    /// Rows that the segment processes. For the head, only the rows that need logits.
    pub rows: u32,
    /// Number of sequences to which the rows belong. Equal to `rows` for segments without attention.
    pub sequences: u32,
    /// Average number of positions that a row attends to. 0 for segments without attention.
    pub positions: f64,
}

/// Measured time of a segment at one point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSample {
    /// Micro-batch shape of the measurement.
    pub at: TimePoint,
    /// Median time, in microseconds.
    pub median_us: f64,
    /// Interquartile range of the times, in microseconds.
    pub spread_us: f64,
    /// Number of measurements.
    pub count: u32,
}

/// Memory traffic and arithmetic operations that a segment needs for a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentWork {
    /// Bytes read and written.
    pub bytes: f64,
    /// Arithmetic operations.
    pub flops: f64,
}

/// Reason why a profile is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidProfile {
    /// The input is not JSON, or has missing or unknown fields.
    #[error("not a profile: {0}")]
    Json(#[from] serde_json::Error),
    /// The profile has a different format version.
    #[error("the profile has version {found}, but this build reads version {PROFILE_VERSION}")]
    Version {
        /// Version of the profile.
        found: u32,
    },
    /// A field has an invalid value.
    #[error("invalid {field}")]
    Figure {
        /// Path of the field.
        field: String,
    },
}

impl From<&Segment> for SegmentKey {
    fn from(segment: &Segment) -> Self {
        Self {
            kind: segment.kind,
            flops_per_row: segment.flops_per_row,
            flops_per_row_position: segment.flops_per_row_position,
            read_bytes: segment.read_bytes,
            experts: segment.experts,
            read_bytes_per_row: segment.read_bytes_per_row,
            kv_bytes_per_position: segment.kv_bytes_per_position,
            window: segment.window,
            state_bytes: segment.state_bytes.iter().sum(),
        }
    }
}

impl SegmentKey {
    /// Returns the other half of this block, or `None` if this is no block to which `half` may belong.
    fn without(&self, half: &Self) -> Option<Self> {
        let (kind, experts, window) = match half.kind {
            SegmentKind::Attention if half.window == self.window => {
                (SegmentKind::FeedForward, self.experts, None)
            }
            SegmentKind::FeedForward if half.experts == self.experts => {
                (SegmentKind::Attention, None, self.window)
            }
            _ => return None,
        };
        let is_block = self.kind == SegmentKind::Block;
        is_block.then_some(Self {
            kind,
            flops_per_row: self.flops_per_row.checked_sub(half.flops_per_row)?,
            flops_per_row_position: self.flops_per_row_position.checked_sub(half.flops_per_row_position)?,
            read_bytes: self.read_bytes.checked_sub(half.read_bytes)?,
            experts,
            read_bytes_per_row: self.read_bytes_per_row.checked_sub(half.read_bytes_per_row)?,
            kv_bytes_per_position: self.kv_bytes_per_position.checked_sub(half.kv_bytes_per_position)?,
            window,
            state_bytes: self.state_bytes.checked_sub(half.state_bytes)?,
        })
    }

    /// Returns whether the segment's time depends on the sequences, and perhaps on the attended positions.
    pub fn attends(&self) -> bool {
        self.flops_per_row_position > 0 || self.kv_bytes_per_position > 0 || self.state_bytes > 0
    }

    /// Returns the point at which to look up this kind of segment's time for `batch`. Rows attend to at most
    /// the positions of the window.
    pub fn point(&self, batch: &BatchShape) -> TimePoint {
        let rows = batch.rows_for(self.kind);
        let positions = self.window.map_or(batch.positions, |window| batch.positions.min(window.into()));
        match self.attends() {
            true => TimePoint { rows, sequences: batch.sequences, positions },
            false => TimePoint { rows, sequences: rows, positions: 0.0 },
        }
    }

    /// Returns the memory traffic and the operation count of a segment of this kind at the point `at`.
    pub fn work(&self, at: &TimePoint) -> SegmentWork {
        let rows = f64::from(at.rows);
        // All rows of a sequence in a micro-batch share one read of the sequence's keys and values, and one read and write of
        // its state.
        let bytes = self.read_bytes as f64
            + self.experts.map_or(0.0, |experts| experts.bytes_of(at.rows))
            + rows * self.read_bytes_per_row as f64
            + f64::from(at.sequences) * at.positions * self.kv_bytes_per_position as f64
            + f64::from(at.sequences) * 2.0 * self.state_bytes as f64;
        let flops = rows * (self.flops_per_row as f64 + at.positions * self.flops_per_row_position as f64);
        SegmentWork { bytes, flops }
    }
}

impl TimePoint {
    /// Returns whether every row belongs to a different sequence, as in decode.
    fn decodes(&self) -> bool {
        self.sequences >= self.rows
    }

    /// If `decodes` is set, returns whether the point lies on the decode curve. Otherwise, returns whether it
    /// lies on the prefill curve. A point with a single row lies on both curves.
    fn is_like(&self, decodes: bool) -> bool {
        self.rows == 1 || self.decodes() == decodes
    }
}

impl TimeSample {
    /// Returns whether no line through this sample and the next one gives finite times: both belong to the
    /// same curve and row count, but their positions hardly differ.
    fn is_ambiguous_with(&self, next: &Self) -> bool {
        let is_one_line = self.at.rows == next.at.rows && self.at.decodes() == next.at.decodes();
        is_one_line && (next.at.positions - self.at.positions).abs() < MIN_POSITIONS
    }
}

impl KindProfile {
    /// Creates the profile of a kind. Sorts its samples, and keeps the first sample of each point. A kind with
    /// a window has several samples of a point if rows were timed at several positions beyond the window.
    pub fn new(key: SegmentKey, mut samples: Vec<TimeSample>) -> Self {
        let order = |s: &TimeSample| (s.at.rows, s.at.sequences);
        samples.sort_by(|a, b| order(a).cmp(&order(b)).then(a.at.positions.total_cmp(&b.at.positions)));
        samples.dedup_by(|later, earlier| later.at == earlier.at);
        Self { key, samples }
    }

    /// Returns the measured or interpolated time at a point, or `None` if no point on the same curve was
    /// measured.
    pub fn time(&self, at: &TimePoint) -> Option<Figure> {
        let decodes = self.line_for(at);
        let rows = || self.samples.iter().filter(|s| s.at.is_like(decodes)).map(|s| s.at.rows);
        let below = rows().filter(|&rows| rows <= at.rows).max();
        let above = rows().filter(|&rows| rows >= at.rows).min();
        let on = |rows| self.on_line(decodes, rows, at.positions);
        let between = |(r0, r1): (u32, u32), (t0, t1): (f64, f64)| {
            t0 + (t1 - t0) * f64::from(at.rows.saturating_sub(r0)) / f64::from(r1 - r0)
        };
        let (value, measured) = match (below, above) {
            (Some(same), Some(other)) if same == other => on(same)?,
            (Some(low), Some(high)) => (between((low, high), (on(low)?.0, on(high)?.0)), false),
            // Extrapolate from the last two row counts. The time never decreases.
            (Some(last), None) => match rows().filter(|&rows| rows < last).max() {
                Some(before) => {
                    let (t0, t1) = (on(before)?.0, on(last)?.0);
                    (between((before, last), (t0, t1.max(t0))).max(t1), false)
                }
                None => (on(last)?.0 * f64::from(at.rows) / f64::from(last), false),
            },
            (None, Some(first)) => (on(first)?.0, false),
            (None, None) => return None,
        };
        let measured = measured && decodes == at.decodes();
        let source = if measured { FigureSource::Measured } else { FigureSource::Fitted };
        Some(Figure { value, source })
    }

    /// Returns whether the time at a point comes from the decode curve. A decode step of several sequences
    /// uses the prefill curve if no such step was measured.
    fn line_for(&self, at: &TimePoint) -> bool {
        at.decodes() && (at.rows == 1 || self.samples.iter().any(|s| s.at.rows > 1 && s.at.decodes()))
    }

    /// Returns the time for `rows`, a measured row count, at `positions` positions. The flag is true if
    /// exactly this point was measured.
    fn on_line(&self, decodes: bool, rows: u32, positions: f64) -> Option<(f64, bool)> {
        let line = || self.samples.iter().filter(|s| s.at.rows == rows && s.at.is_like(decodes));
        if let Some(same) = line().find(|s| s.at.positions == positions) {
            return Some((same.median_us, true));
        }
        let is_above = |s: &&TimeSample| s.at.positions > positions;
        // Select the neighbouring samples. Outside the measured range, select the two nearest samples.
        let (mut high, mut low) = (line().find(is_above), line().rfind(|s| !is_above(s)));
        let outside = high.is_none() || low.is_none();
        if high.is_none() {
            (high, low) = (low, line().rev().nth(1));
        } else if low.is_none() {
            (low, high) = (high, line().nth(1));
        }
        let (a, slope) = match (low, high) {
            (Some(a), Some(b)) => (a, slope(a, b)),
            (one, None) | (None, one) => (one?, self.slope_of_others(decodes, rows)),
        };
        // Clamp an extrapolated slope at 0: more positions never take less time, and extrapolation amplifies
        // noise.
        let slope = if outside { slope.max(0.0) } else { slope };
        Some(((a.median_us + slope * (positions - a.at.positions)).max(0.0), false))
    }

    /// Estimates the time per position, in microseconds, for a row count that was measured at only one
    /// position count. Uses the time per row and position of the nearest row count that was measured at two
    /// or more position counts.
    fn slope_of_others(&self, decodes: bool, rows: u32) -> f64 {
        let line = || self.samples.iter().filter(|s| s.at.is_like(decodes));
        let pairs = line().zip(line().skip(1)).filter(|(a, b)| a.at.rows == b.at.rows);
        let away = |other: u32| (f64::from(other) / f64::from(rows)).ln().abs();
        let nearest = pairs.min_by(|(a, _), (b, _)| away(a.at.rows).total_cmp(&away(b.at.rows)));
        nearest.map_or(0.0, |(a, b)| slope(a, b) * f64::from(rows) / f64::from(a.at.rows))
    }
}

/// Returns the microseconds per position between two samples with the same row count.
fn slope(a: &TimeSample, b: &TimeSample) -> f64 {
    (b.median_us - a.median_us) / (b.at.positions - a.at.positions)
}

impl Roofline {
    /// Returns the time of some work at the highest rates, without the overhead, in microseconds.
    fn us(&self, work: &SegmentWork) -> f64 {
        (work.bytes / self.bandwidth_bytes_per_s).max(work.flops / self.flops_per_s) * 1e6
    }

    /// Fits a roofline that bounds all measured times from below. Returns `None` if there are no measured
    /// times.
    pub fn fit(kinds: &[KindProfile]) -> Option<Self> {
        let all =
            || kinds.iter().flat_map(|kind| kind.samples.iter().map(|s| (kind.key.work(&s.at), s.median_us)));
        let times = || all().filter(|(_, us)| *us > 0.0);
        let launch_us = times().map(|(_, us)| us).reduce(f64::min)?;
        // Subtract the launch overhead. A time close to the overhead says little about the rate, so subtract
        // at most half of the time.
        let rate = |amount: f64, us: f64| amount / (us - launch_us).max(us / 2.0) * 1e6;
        let highest =
            |of: fn(&SegmentWork) -> f64| times().map(|(w, us)| rate(of(&w), us)).fold(1.0, f64::max);
        Some(Self {
            bandwidth_bytes_per_s: highest(|w| w.bytes),
            flops_per_s: highest(|w| w.flops),
            launch_us,
        })
    }
}

impl Profile {
    /// Returns the time of a segment for a micro-batch, or `None` if neither its kind nor a block to which it may
    /// belong was measured.
    pub fn time(&self, key: &SegmentKey, batch: &BatchShape) -> Option<Figure> {
        match self.kinds.iter().find(|kind| kind.key == *key) {
            Some(kind) => kind.time(&key.point(batch)),
            None => self.time_of_half(key, batch),
        }
    }

    /// Returns the time of half a block: its part of the time of a measured block, in proportion to the times that the
    /// roofline gives for the two halves.
    fn time_of_half(&self, half: &SegmentKey, batch: &BatchShape) -> Option<Figure> {
        let roofline = self.roofline?;
        let (block, rest) = self.kinds.iter().find_map(|kind| Some((kind, kind.key.without(half)?)))?;
        let us = |key: &SegmentKey| roofline.us(&key.work(&key.point(batch)));
        let (own_us, rest_us) = (us(half), us(&rest));
        let whole = block.time(&block.key.point(batch))?;
        let part = if own_us > 0.0 { own_us / (own_us + rest_us) } else { 0.0 };
        Some(Figure { value: whole.value * part, source: FigureSource::Fitted })
    }

    /// Returns whether `key` was measured at exactly the point `at`.
    pub fn has(&self, key: &SegmentKey, at: &TimePoint) -> bool {
        self.sample(key, at).is_some()
    }

    /// Returns whether a prefill chunk of `rows` rows was measured.
    pub(crate) fn has_chunk(&self, rows: u32) -> bool {
        let mut samples = self.kinds.iter().flat_map(|kind| &kind.samples);
        samples.any(|sample| sample.at.rows == rows && !sample.at.decodes())
    }

    fn sample(&self, key: &SegmentKey, at: &TimePoint) -> Option<&TimeSample> {
        let kind = self.kinds.iter().find(|kind| kind.key == *key)?;
        kind.samples.iter().find(|sample| sample.at == *at)
    }

    /// Adds the points of another profile with the same identity, and fits the roofline again. The merged
    /// profile keeps the older of the two measurement times.
    pub fn merge(&mut self, other: &Profile) {
        self.measured_unix_s = self.measured_unix_s.min(other.measured_unix_s);
        self.timed_for = TimedFor {
            chunk: self.timed_for.chunk.max(other.timed_for.chunk),
            sequences: self.timed_for.sequences.max(other.timed_for.sequences),
        };
        for theirs in &other.kinds {
            match self.kinds.iter_mut().find(|kind| kind.key == theirs.key) {
                None => self.kinds.push(theirs.clone()),
                Some(own) => {
                    let new = theirs.samples.iter().filter(|s| own.samples.iter().all(|o| o.at != s.at));
                    let samples = own.samples.iter().chain(new).copied().collect();
                    *own = KindProfile::new(own.key, samples);
                }
            }
        }
        self.roofline = Roofline::fit(&self.kinds);
    }

    /// Multiplies the times of decode steps, or of chunks if `decodes` is false, by `factor`. If row counts between
    /// half of `rows` and twice `rows` were measured, only their times change. Fits the roofline again.
    pub fn scale(&mut self, decodes: bool, rows: f64, factor: f64) {
        let is_of = |sample: &TimeSample| sample.at.decodes() == decodes;
        let is_near = |sample: &TimeSample| (rows / 2.0..=rows * 2.0).contains(&f64::from(sample.at.rows));
        let any_near = self.kinds.iter().flat_map(|kind| &kind.samples).any(|it| is_of(it) && is_near(it));
        let samples = self.kinds.iter_mut().flat_map(|kind| &mut kind.samples);
        for sample in samples.filter(|sample| is_of(sample) && (is_near(sample) || !any_near)) {
            sample.median_us *= factor;
            sample.spread_us *= factor;
        }
        self.roofline = Roofline::fit(&self.kinds);
    }

    /// Returns the mean of profiles that were measured on equal devices at the same time. The time of a point
    /// is the mean over the profiles that contain the point. Returns `None` if `profiles` is empty.
    pub fn mean(profiles: &[&Profile]) -> Option<Self> {
        let mut mean = (*profiles.first()?).clone();
        let average = |of: &dyn Fn(&Profile) -> f64| {
            profiles.iter().map(|profile| of(profile)).sum::<f64>() / profiles.len() as f64
        };
        mean.stage_us = average(&|p| p.stage_us);
        mean.hand_over_us = average(&|p| p.hand_over_us);
        mean.host_latency_us = average(&|p| p.host_latency_us);
        mean.host_bandwidth_bytes_per_s = average(&|p| p.host_bandwidth_bytes_per_s);
        mean.token_return.latency_us = average(&|p| p.token_return.latency_us);
        mean.token_return.row_us = average(&|p| p.token_return.row_us);
        profiles[1..].iter().for_each(|other| mean.merge(other));
        for kind in &mut mean.kinds {
            for sample in &mut kind.samples {
                let found = profiles.iter().filter_map(|profile| profile.sample(&kind.key, &sample.at));
                let found: Vec<_> = found.collect();
                let average = |of: fn(&TimeSample) -> f64| {
                    found.iter().map(|sample| of(sample)).sum::<f64>() / found.len() as f64
                };
                sample.median_us = average(|sample| sample.median_us);
                sample.spread_us = average(|sample| sample.spread_us);
                sample.count = found.iter().map(|sample| sample.count).fold(0, u32::saturating_add);
            }
        }
        mean.roofline = Roofline::fit(&mean.kinds);
        Some(mean)
    }

    /// Parses a profile.
    ///
    /// # Errors
    /// Returns [`InvalidProfile`] if `json` is not a valid profile.
    pub fn from_json(json: &str) -> Result<Self, InvalidProfile> {
        let found = crate::json::version(json, "ragtag_profile");
        if let Some(found) = found.filter(|found| *found != PROFILE_VERSION) {
            return Err(InvalidProfile::Version { found });
        }
        let profile: Self = serde_json::from_str(json)?;
        match profile.nonsense() {
            Some(field) => Err(InvalidProfile::Figure { field }),
            None => Ok(profile),
        }
    }

    /// Returns the path of the first field that has an invalid value, if any.
    pub(crate) fn nonsense(&self) -> Option<String> {
        if self.ragtag_profile != PROFILE_VERSION {
            return Some("ragtag_profile".into());
        }
        if self.kinds.iter().map(|kind| kind.samples.len()).sum::<usize>() > MAX_SAMPLES {
            return Some("kinds (their number of samples)".into());
        }
        let mut overheads = vec![
            ("stage_us".to_owned(), self.stage_us),
            ("hand_over_us".to_owned(), self.hand_over_us),
            ("host_latency_us".to_owned(), self.host_latency_us),
            ("token_return.latency_us".to_owned(), self.token_return.latency_us),
            ("token_return.row_us".to_owned(), self.token_return.row_us),
        ];
        let mut rates = vec![("host_bandwidth_bytes_per_s", self.host_bandwidth_bytes_per_s)];
        if let Some(roofline) = &self.roofline {
            overheads.push(("roofline.launch_us".to_owned(), roofline.launch_us));
            rates.push(("roofline.bandwidth_bytes_per_s", roofline.bandwidth_bytes_per_s));
            rates.push(("roofline.flops_per_s", roofline.flops_per_s));
        }
        for (k, kind) in self.kinds.iter().enumerate() {
            for (s, sample) in kind.samples.iter().enumerate() {
                let name = |field: &str| format!("kinds[{k}].samples[{s}].{field}");
                overheads.push((name("median_us"), sample.median_us));
                overheads.push((name("spread_us"), sample.spread_us));
                let TimePoint { rows, sequences, positions } = sample.at;
                if rows == 0 || sequences == 0 || !(0.0..=1e12).contains(&positions) {
                    return Some(name("at"));
                }
            }
            let sorted = KindProfile::new(kind.key, kind.samples.clone());
            if sorted != *kind || kind.samples.windows(2).any(|pair| pair[0].is_ambiguous_with(&pair[1])) {
                return Some(format!("kinds[{k}].samples (their order)"));
            }
        }
        let rate = rates.into_iter().find(|(_, value)| !is_rate(*value)).map(|(name, _)| name.to_owned());
        rate.or_else(|| overheads.into_iter().find(|(_, us)| !is_overhead_us(*us)).map(|(name, _)| name))
    }
}
