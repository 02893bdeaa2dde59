//! Times stages with a few segments on a single device.
//!
//! Even an empty stage takes a fixed time per micro-batch. The timer subtracts this fixed cost from all other
//! times and divides the rest among the segments of the stage.

use super::budget::Budget;
use super::busy::Meter;
use super::doubt::Doubt;
use super::filling::Filling;
use super::options::is_processor;
use super::stats::{CLEAN, Circumstances, Stats, Timings, undisturbed_us};
use super::steps::{ChunkTimes, Steps, micro_batch};
use super::sweep::Sweep;
use crate::calibrate::solo::{SoloBatch, SoloDevice, SoloStage};
use crate::error::{Error, Result};
use ragtag_graph::CompiledStage;
use ragtag_hal::Adapter;
use ragtag_planner::ModelFacts;
use ragtag_planner::cost::{
    DeviceFacts, FigureSource, KindProfile, PROFILE_VERSION, Profile, ProfileIdentity, Roofline, SegmentKey,
    TimePoint, TokenReturn, fit_copies,
};
use ragtag_scheduler::{Picks, Sampler, Sampling};
use std::cell::Cell;
use std::ops::Range;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Number of times that a copy or a hand-over is timed.
const REPETITIONS: usize = 25;
/// Number of times that a thread wake-up is timed.
const WAKES: usize = 200;
/// Sizes of the timed copies, in bytes. Copies of one row of activations are timed as well.
const COPY_BYTES: [u64; 4] = [4 << 10, 64 << 10, 512 << 10, 2 << 20];
/// Size in bytes of the copies that determine the rate to a device. Streamed weights are copied in pieces of
/// about this size.
const LARGE_COPY_BYTES: u64 = 16 << 20;
/// Approximate time of a submission with such copies, in microseconds. The latency of a submission is much shorter.
const LARGE_COPIES_US: f64 = 5000.0;
/// Maximum relative difference between a measurement at the start and its repetition at the end. A larger
/// difference means that the device has drifted.
const DRIFT: f64 = 0.15;
/// Maximum duration of the warm-up in a quick calibration. The device's clocks ramp up during the warm-up.
const WARM_UP: Duration = Duration::from_millis(100);
/// Maximum total time of all repetitions of one measurement in a quick calibration.
const MAX_SHARE: Duration = Duration::from_millis(60);
/// Maximum fractions of the remaining time that a quick calibration spends on loading blocks, on decode, on
/// chunks, on the head and on the embedding, respectively.
const LOAD_PART: f64 = 0.2;
const DECODE_PART: f64 = 0.3;
const CHUNKS_PART: f64 = 0.6;
const HEAD_PART: f64 = 0.5;
const EMBEDDING_PART: f64 = 0.5;
/// Expected time in microseconds above which a quick calibration runs a batch on its own instead of in a
/// burst.
const LONG_US: f64 = 50e3;
/// Ratio of measured to expected time above which a chunk is timed again.
const DISTURBED: f64 = 3.0;
/// Number of runs of a batch that must fit into the remaining time. Otherwise the batch is not timed.
const RUNS: f64 = 4.0;
/// Number of visits into which the time of a measurement is divided. Other measurements take place in between, so that
/// a short disturbance does not spoil all timings of one measurement.
const VISITS: u32 = 2;
/// Maximum number of further visits to measurements with doubtful timings.
const MORE_VISITS: u32 = 2;
/// Assumed machine balance, in arithmetic operations per byte of memory traffic. CPUs have a lower balance,
/// and GPUs have a higher one.
const FLOPS_PER_BYTE: f64 = 50.0;

/// Timer for the segments of the model on one device.
pub(super) struct Timer<'a> {
    pub(super) steps: &'a Steps,
    /// Approximate total duration of the measurements in seconds, if the budget has no limit.
    pub(super) seconds: f64,
    pub(super) budget: Budget,
    pub(super) tick: &'a (dyn Fn() + Sync),
    /// Meter of the load by other processes, which starts with the measurements.
    meter: Meter,
    is_processor: bool,
    /// Largest loss of a measurement in the profile.
    lost: Cell<f64>,
    start: Instant,
    /// Time added to the budget.
    added: Cell<Duration>,
}

/// Measured times of one micro-batch on a range of segments.
struct Timed {
    batch: SoloBatch,
    /// Whether the micro-batch runs only on its own, because it takes long.
    is_long: bool,
    timings: Timings,
    stats: Stats,
    segments: Range<usize>,
}

/// Batches to time on a stage.
struct Wanted<'a> {
    /// Batches in order of importance.
    batches: &'a [SoloBatch],
    segments: Range<usize>,
    /// Fraction of the budget after which no more batches are timed.
    until: f64,
    sweep: Option<Sweep>,
}

/// Timings of the blocks that are timed together, with warnings for the user.
#[derive(Default)]
struct BlockTimings {
    timed: Vec<Timed>,
    /// Number of batches that were dropped because their timings vary too much.
    unsteady: usize,
    warnings: Vec<String>,
}

/// Result of the measurements on a device.
pub(super) struct TimedProfile {
    /// Profile, or the part of it that fits in the budget. Its measurement time is 0.
    pub(super) profile: Profile,
    pub(super) warnings: Vec<String>,
    pub(super) doubt: Doubt,
    /// Compilation time that does not count towards the budget.
    pub(super) excused: Duration,
}

impl<'a> Timer<'a> {
    pub(super) fn new(
        steps: &'a Steps,
        seconds: f64,
        budget: Budget,
        tick: &'a (dyn Fn() + Sync),
        device: &SoloDevice,
    ) -> Self {
        let is_processor = is_processor(device.adapter());
        let (meter, start) = (Meter::start(), Instant::now());
        let (lost, added) = Default::default();
        Self { steps, seconds, budget, tick, meter, is_processor, lost, start, added }
    }

    /// Measures the profile of `device`.
    ///
    /// # Errors
    /// Fails if the device fails, or if the timings of the first decode step vary too much.
    pub(super) fn profile(
        &self,
        identity: &ProfileIdentity,
        device: &mut SoloDevice,
    ) -> Result<TimedProfile> {
        let steps = self.steps;
        let left = || self.budget.left(1.0) / 4;
        let mut uploads = bulk_uploads_us(device, left())?;
        let stage_us = self.stage_us(device)?;
        let (mut kinds, warnings) = self.blocks(device, stage_us, identity.together)?;
        let (head, token_return) = self.head(device, stage_us, identity.together)?;
        kinds.extend(head);
        kinds.extend(self.embedding(device, stage_us)?);
        let (host_latency_us, _) = fit_copies(&host_copies(device, steps.row_bytes(), left() * 2)?);
        uploads.extend(bulk_uploads_us(device, left())?);
        let host_bandwidth_bytes_per_s = bulk_rate(uploads);
        let token_return = token_return.unwrap_or_else(|| TokenReturn {
            latency_us: host_latency_us + wake_us(),
            row_us: ModelFacts::RETURN_ROW_BYTES as f64 / host_bandwidth_bytes_per_s * 1e6,
        });
        let (host_latency_us, token_return) = self.quiet(device.adapter(), host_latency_us, token_return);
        let profile = Profile {
            ragtag_profile: PROFILE_VERSION,
            identity: identity.clone(),
            measured_unix_s: 0,
            timed_for: steps.timed_for(),
            stage_us,
            // A calibration pipeline times this overhead later.
            hand_over_us: 0.0,
            host_latency_us,
            host_bandwidth_bytes_per_s,
            token_return,
            roofline: Roofline::fit(&kinds),
            kinds,
        };
        let doubt = Doubt::new(self.lost.get(), self.meter.others(), &profile, self.is_processor);
        Ok(TimedProfile { profile, warnings, doubt, excused: self.budget.excused() })
    }

    /// Limits the token return and the latency of an adapter to the assumed ones if other processes have disturbed the
    /// measurements. A thread that waits for a copy then waits for a CPU, too, for milliseconds in almost every
    /// repetition.
    fn quiet(
        &self,
        adapter: &Adapter,
        host_latency_us: f64,
        token_return: TokenReturn,
    ) -> (f64, TokenReturn) {
        if self.lost.get() <= CLEAN {
            return (host_latency_us, token_return);
        }
        let assumed = DeviceFacts::assumed("", adapter.kind, 1, 0, FigureSource::Assumed);
        let latency_us = assumed.host_latency_us.value;
        let return_us = latency_us + assumed.stage_us.value;
        let row_us = ModelFacts::RETURN_ROW_BYTES as f64 / assumed.host_bandwidth_bytes_per_s.value * 1e6;
        let token_return = TokenReturn {
            latency_us: token_return.latency_us.min(return_us),
            row_us: token_return.row_us.min(row_us),
        };
        (host_latency_us.min(latency_us), token_return)
    }

    fn is_quick(&self) -> bool {
        self.budget.whole().is_some()
    }

    /// Returns the time that each measurement may take.
    fn share(&self) -> Duration {
        let seconds = match self.budget.whole() {
            Some(whole) => whole.as_secs_f64() / 2.0,
            None => self.seconds.clamp(0.0, 3600.0),
        };
        let share = Duration::from_secs_f64(seconds / self.steps.count() as f64);
        if self.is_quick() { share.min(MAX_SHARE) } else { share }
    }

    fn load<'d>(&self, device: &'d mut SoloDevice, compiled: CompiledStage) -> Result<SoloStage<'d>> {
        let (start, segments) = (Instant::now(), compiled.segments.clone());
        let filling = Filling::new(&compiled);
        let stage = device.load(compiled, &filling)?;
        self.budget.excuse(stage.made_in());
        self.extend_budget();
        tracing::debug!(?segments, took = ?start.elapsed(), compiling = ?stage.made_in(), "loaded a stage for timing");
        Ok(stage)
    }

    fn load_segments<'d>(&self, device: &'d mut SoloDevice, segments: Range<usize>) -> Result<SoloStage<'d>> {
        let compiled = self.compiled(|| self.steps.compile_decode(segments, device.adapter()))?;
        self.load(device, compiled)
    }

    /// Compiles a stage. This takes a few hundred milliseconds for a model of many blocks, and does not count towards the
    /// budget.
    fn compiled(&self, compile: impl FnOnce() -> Result<CompiledStage>) -> Result<CompiledStage> {
        let start = Instant::now();
        let compiled = compile();
        self.budget.excuse(start.elapsed());
        compiled
    }

    /// Calls `once` repeatedly for the time that [`Self::share`] returns. Stops earlier if the fraction
    /// `until` of the budget is used up. If other processes disturb the timings, takes more of them.
    fn taken(
        &self,
        until: f64,
        sweep: Option<&Sweep>,
        mut once: impl FnMut() -> Result<f64>,
    ) -> Result<Stats> {
        let mut timings = self.visit(self.share(), until, sweep, &mut once)?;
        for _ in 0..MORE_VISITS {
            let left = self.budget.left(until);
            let has_time = !left.is_zero() && left >= self.share() * VISITS;
            if !timings.stats(self.is_processor).is_doubtful() || !has_time {
                break;
            }
            timings.add(self.visit(self.share(), until, sweep, &mut once)?, self.is_processor);
        }
        let stats = timings.stats(self.is_processor);
        self.lost.set(self.lost.get().max(stats.lost));
        (self.tick)();
        Ok(stats)
    }

    fn visit(
        &self,
        limit: Duration,
        until: f64,
        sweep: Option<&Sweep>,
        once: impl FnMut() -> Result<f64>,
    ) -> Result<Timings> {
        let of = Circumstances { meter: &self.meter, sweep };
        let timings = Timings::taken(limit, self.budget.left(until), of, once)?;
        self.extend_budget();
        Ok(timings)
    }

    /// Adds the time that other processes have taken to the budget, up to its double.
    fn extend_budget(&self) {
        let taken = self.start.elapsed().mul_f64(self.meter.lost().clamp(0.0, 1.0));
        let added = taken.min(self.budget.whole().unwrap_or_default());
        self.budget.excuse(added.saturating_sub(self.added.get()));
        self.added.set(added.max(self.added.get()));
    }

    /// Measures the time of a micro-batch on an empty stage, in microseconds.
    fn stage_us(&self, device: &mut SoloDevice) -> Result<f64> {
        let first = self.steps.window.start.min(self.steps.head());
        let mut compiled = self.compiled(|| self.steps.compile_decode(first..first + 1, device.adapter()))?;
        compiled.programs.iter_mut().for_each(|program| program.steps.clear());
        compiled.weights.clear();
        let mut stage = self.load(device, compiled)?;
        let until = self.budget.share_after(DECODE_PART);
        Ok(self.taken(until, None, || Ok(stage.burst_us(&SoloBatch::chunk(1, 0))?))?.median_us)
    }

    fn embedding(&self, device: &mut SoloDevice, stage_us: f64) -> Result<Option<KindProfile>> {
        let rows = self.steps.embedding_rows();
        if rows.is_empty() || self.budget.left(1.0).is_zero() {
            return Ok(None);
        }
        let compiled = self.compiled(|| self.steps.compile_prefill(0..1, device.adapter()))?;
        let mut stage = self.load(device, compiled)?;
        let mut samples = Vec::new();
        let until = self.budget.share_after(EMBEDDING_PART);
        // The first and last row counts come first, because times between them can be interpolated.
        let (last, others) = rows.split_last().unwrap_or((&1, &[]));
        let (first, others) = others.split_first().unwrap_or((last, &[]));
        let mut ordered = vec![*first, *last];
        ordered.extend(others.iter().rev());
        ordered.dedup();
        for rows in ordered {
            if !samples.is_empty() && self.budget.left(until).is_zero() {
                break;
            }
            let stats = self.taken(until, None, || Ok(stage.burst_us(&SoloBatch::chunk(rows, 0))?))?;
            let at = TimePoint { rows, sequences: rows, positions: 0.0 };
            samples.push(stats.sample(at, |us| us - stage_us));
        }
        Ok(Some(KindProfile::new(self.steps.keys[0], samples)))
    }

    /// Times the head and the token return. `together` is the number of CPU devices that are timed
    /// concurrently and share the CPU caches.
    fn head(
        &self,
        device: &mut SoloDevice,
        stage_us: f64,
        together: u32,
    ) -> Result<(Option<KindProfile>, Option<TokenReturn>)> {
        if !self.steps.times_head() || self.budget.left(1.0).is_zero() {
            return Ok((None, None));
        }
        let head = self.steps.head();
        let sweep = self.sweep(&(head..head + 1), together);
        let mut stage = self.load_segments(device, head..head + 1)?;
        let until = self.budget.share_after(HEAD_PART);
        let mut samples = Vec::new();
        let rows = &self.steps.head_rows;
        for &rows in rows.iter().take(1).chain(rows.iter().skip(1).rev()) {
            if !samples.is_empty() && self.budget.left(until).is_zero() {
                break;
            }
            let batch = SoloBatch::decode(rows, 1);
            let stats = self.taken(until, sweep.as_ref(), || run_us(&mut stage, &batch, sweep.is_some()))?;
            let at = TimePoint { rows, sequences: rows, positions: 0.0 };
            samples.push(stats.sample(at, |us| us - stage_us));
        }
        let token_return = self.token_return(&mut stage)?;
        Ok((Some(KindProfile::new(self.steps.keys[head], samples)), token_return))
    }

    /// Times the token return on a stage with the head. Returns `None` if no time is left.
    fn token_return(&self, stage: &mut SoloStage<'_>) -> Result<Option<TokenReturn>> {
        if self.budget.left(1.0).is_zero() {
            return Ok(None);
        }
        let sampler = Sampler::new(Sampling::default());
        let mut sampler = sampler.map_err(|error| Error::Usage(error.to_string()))?;
        let mut choose = |picks: &Picks<'_>| drop(std::hint::black_box(sampler.sample_picks(picks, &[])));
        let mut hand_over = |rows: u32| {
            let batch = SoloBatch::decode(rows, 1);
            let times = Stats::times(REPETITIONS, self.budget.left(1.0) / 4, || {
                Ok(stage.hand_over_us(&batch, &mut choose)?)
            });
            Ok::<_, Error>(undisturbed_us(times?))
        };
        let most = self.steps.head_rows.last().copied().unwrap_or(1);
        let one_us = hand_over(1)?;
        // Cost per row: copying it, reading it and sampling a token.
        let row_us =
            if most > 1 { ((hand_over(most)? - one_us) / f64::from(most - 1)).max(0.0) } else { 0.0 };
        // The measured hand-over includes waking the coordinator. `wake_us` adds the wake-up of the first
        // stage's actor.
        let latency_us = one_us - row_us + wake_us();
        Ok(Some(TokenReturn { latency_us: latency_us.max(0.0), row_us }))
    }

    /// Times all kinds of segments between embedding and head. Times the blocks of the window together, and
    /// divides the total among them. The shares are proportional to the blocks' separately measured times, or
    /// to their estimated work in a quick calibration.
    fn blocks(
        &self,
        device: &mut SoloDevice,
        stage_us: f64,
        together: u32,
    ) -> Result<(Vec<KindProfile>, Vec<String>)> {
        let steps = self.steps;
        if steps.window.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let BlockTimings { timed: whole, unsteady, mut warnings } =
            self.window(device, stage_us, together)?;
        if unsteady > 0 {
            let (label, all) = (device.adapter().label(), whole.len() + unsteady);
            warnings.push(format!(
                "{label}: ignoring {unsteady} of {all} timings that vary too much (is the machine busy?)"
            ));
        }
        if !whole.iter().any(|timed| timed.batch == steps.decode[0]) {
            return Err(Error::Usage("timings vary too much (is the machine busy?)".into()));
        }
        let alone = self.alone(device, &whole, together)?;
        let of_key = |key: SegmentKey| alone.iter().find(|(segment, _)| steps.keys[*segment] == key);
        let net_us = |stats: &Stats| (stats.median_us - stage_us).max(0.0);
        let kind = |&segment: &usize| {
            let key = steps.keys[segment];
            let inside = steps.window.clone().any(|other| steps.keys[other] == key);
            let sample = |(index, timed): (usize, &Timed)| {
                let at = key.point(&micro_batch(&timed.batch));
                let own = of_key(key).map(|(_, times)| times[index]);
                if let Some(own) = own.filter(|_| !inside) {
                    return own.sample(at, |us| us - stage_us);
                }
                let weight = |key: SegmentKey| match of_key(key) {
                    Some((_, times)) => net_us(&times[index]),
                    None => work(&key, &timed.batch),
                };
                let all: f64 = timed.segments.clone().map(|s| weight(steps.keys[s])).sum();
                let share = if all > 0.0 { weight(key) / all } else { 1.0 / timed.segments.len() as f64 };
                timed.stats.sample(at, |us| (us - stage_us).max(0.0) * share)
            };
            KindProfile::new(key, whole.iter().enumerate().map(sample).collect())
        };
        Ok((steps.kinds.iter().map(kind).collect(), warnings))
    }

    /// For each kind of segment, times each batch on the first segment of this kind alone. Skips a kind if
    /// all blocks of the window have this kind, because the timing of the window then suffices. Times nothing
    /// in a quick calibration.
    fn alone(
        &self,
        device: &mut SoloDevice,
        whole: &[Timed],
        together: u32,
    ) -> Result<Vec<(usize, Vec<Stats>)>> {
        let steps = self.steps;
        let mut alone = Vec::new();
        if self.is_quick() {
            return Ok(alone);
        }
        let uniform = steps.is_uniform();
        for &segment in steps.kinds.iter().filter(|&&segment| !uniform || segment != steps.window.start) {
            let mut times = vec![None; whole.len()];
            for decode in [true, false] {
                let sweep = self.sweep(&(segment..segment + 1), together).filter(|_| decode);
                let mut stage = self.load_window(device, segment..segment + 1, decode)?;
                for (timed, time) in whole.iter().zip(&mut times) {
                    if steps.decode.contains(&timed.batch) == decode {
                        let once = || run_us(&mut stage, &timed.batch, sweep.is_some());
                        *time = Some(self.taken(1.0, sweep.as_ref(), once)?);
                    }
                }
            }
            alone.push((segment, times.into_iter().flatten().collect()));
        }
        Ok(alone)
    }

    /// Loads a range of blocks as a stage. The stage runs decode steps if `decode` is set, and chunks
    /// otherwise.
    fn load_window<'d>(
        &self,
        device: &'d mut SoloDevice,
        segments: Range<usize>,
        decode: bool,
    ) -> Result<SoloStage<'d>> {
        if decode {
            return self.load_segments(device, segments);
        }
        let compiled = self.compiled(|| self.steps.compile_prefill(segments, device.adapter()))?;
        self.load(device, compiled)
    }

    /// Times each decode step and each chunk on the window of blocks. Skips chunks that would take too long.
    /// A CPU's caches are swept before each decode step if the model is larger than the window.
    fn window(&self, device: &mut SoloDevice, stage_us: f64, together: u32) -> Result<BlockTimings> {
        let (steps, label) = (self.steps, device.adapter().label());
        let window = self.decode_window(device)?;
        let sweep = self.sweep(&window, together);
        let mut stage = self.load_window(device, window.clone(), true)?;
        self.warm_up(&mut stage, &steps.decode[0])?;
        let until = self.budget.share_after(DECODE_PART);
        let wanted = Wanted { batches: &steps.decode, segments: window, until, sweep };
        let mut timings = BlockTimings::default();
        self.steadily(&mut stage, &label, &mut timings, |stage, tick| {
            self.batches(stage, stage_us, &wanted, tick)
        })?;
        drop((stage, wanted));
        let chunks = steps.chunk_window(device.adapter());
        let batches = steps.chunks(device.adapter());
        if batches.is_empty() {
            return Ok(timings);
        }
        let mut stage = self.load_window(device, chunks.clone(), false)?;
        let until = self.budget.share_after(CHUNKS_PART);
        let wanted = Wanted { batches, segments: chunks, until, sweep: None };
        self.steadily(&mut stage, &label, &mut timings, |stage, tick| {
            self.batches(stage, stage_us, &wanted, tick)
        })?;
        Ok(timings)
    }

    /// Returns a sweep of the weights that a CPU reads between two executions of `segments`, or `None` on a
    /// GPU.
    fn sweep(&self, segments: &Range<usize>, together: u32) -> Option<Sweep> {
        let others = || Sweep::new(self.steps.bytes_beside(segments), together);
        self.is_processor.then(others).flatten()
    }

    /// Returns the blocks on which decode is timed. A quick calibration loads the first block to estimate the
    /// loading time. It limits the number of blocks so that loading takes at most the fraction [`LOAD_PART`]
    /// of the remaining time.
    fn decode_window(&self, device: &mut SoloDevice) -> Result<Range<usize>> {
        let Range { start, end } = self.steps.decode_window(device.adapter());
        if !self.is_quick() || end - start < 2 {
            return Ok(start..end);
        }
        let before = Instant::now();
        let made_in = self.load_window(device, start..start + 1, true)?.made_in();
        let took = before.elapsed().saturating_sub(made_in).max(Duration::from_micros(1));
        let most = self.budget.left(1.0).mul_f64(LOAD_PART).as_secs_f64() / took.as_secs_f64();
        Ok(start..end.min(start + (most as usize).max(1)))
    }

    /// In a quick calibration, keeps the device busy until its clocks have ramped up. Other calibrations need
    /// no warm-up, because they detect drift and time the batches again.
    fn warm_up(&self, stage: &mut SoloStage<'_>, batch: &SoloBatch) -> Result<()> {
        let limit = WARM_UP.min(self.budget.left(1.0) / 8);
        let start = Instant::now();
        while self.is_quick() && start.elapsed() < limit {
            stage.burst_us(batch)?;
        }
        Ok(())
    }

    /// Times the batches with `times`, and drops the batches whose timings vary too much. Unless the
    /// calibration is quick, times the first batch again at the end. If its time has drifted, repeats all
    /// timings, because the device may have been slow at the start.
    fn steadily(
        &self,
        stage: &mut SoloStage<'_>,
        label: &str,
        timings: &mut BlockTimings,
        times: impl Fn(&mut SoloStage<'_>, &dyn Fn()) -> Result<Vec<Timed>>,
    ) -> Result<()> {
        let mut timed = times(stage, self.tick)?;
        if !self.is_quick() && self.drift(stage, &timed)?.is_some() {
            timed = times(stage, &|| ())?;
            if let Some((blocks, [first, last])) = self.drift(stage, &timed)? {
                timings.warnings.push(format!(
                    "{label} drifts: {blocks} blocks took {first:.0} µs at the start and {last:.0} µs at the end"
                ));
            }
        }
        let count = timed.len();
        timed.retain(|timed| !timed.stats.is_unsteady());
        self.lost.set(timed.iter().map(|timed| timed.stats.lost).fold(self.lost.get(), f64::max));
        timings.unsteady += count - timed.len();
        timings.timed.extend(timed);
        Ok(())
    }

    /// Times batches on a stage. Always times the first batch. Visits each of them several times.
    fn batches(
        &self,
        stage: &mut SoloStage<'_>,
        stage_us: f64,
        wanted: &Wanted<'_>,
        tick: &dyn Fn(),
    ) -> Result<Vec<Timed>> {
        let left_us = || self.budget.left(wanted.until).as_secs_f64() * 1e6;
        let mut chunk_times = ChunkTimes::default();
        let mut timed: Vec<Timed> = Vec::new();
        for &batch in wanted.batches {
            let expected_us = chunk_times.expected_us(&batch);
            let is_long = self.is_quick() && expected_us > LONG_US;
            let runs = if is_long { 1.0 } else { RUNS };
            let affordable = left_us() > 0.0 && expected_us * runs <= left_us();
            if !timed.is_empty() && !(affordable && (self.is_quick() || chunk_times.allows(&batch))) {
                continue;
            }
            let mut timings = self.visit_batch(stage, &batch, is_long, wanted)?;
            let mut stats = timings.stats(self.is_processor);
            // Another process may have used the device.
            if expected_us > 0.0 && stats.median_us > DISTURBED * (expected_us + stage_us) {
                let again = self.visit_batch(stage, &batch, is_long, wanted)?;
                let later = again.stats(self.is_processor);
                (timings, stats) =
                    if later.median_us < stats.median_us { (again, later) } else { (timings, stats) };
            }
            tick();
            chunk_times.record(&batch, stats.median_us - stage_us);
            timed.push(Timed { batch, is_long, timings, stats, segments: wanted.segments.clone() });
        }
        for visit in 1..VISITS + MORE_VISITS {
            for timed in &mut timed {
                let wanted_again = timed.stats.is_doubtful() || (visit < VISITS && !timed.is_long);
                if !wanted_again || timed.stats.median_us * RUNS > left_us() {
                    continue;
                }
                let later = self.visit_batch(stage, &timed.batch, timed.is_long, wanted)?;
                timed.timings.add(later, self.is_processor);
                timed.stats = timed.timings.stats(self.is_processor);
            }
        }
        Ok(timed)
    }

    /// Takes the timings of one visit to a batch.
    fn visit_batch(
        &self,
        stage: &mut SoloStage<'_>,
        batch: &SoloBatch,
        is_long: bool,
        wanted: &Wanted<'_>,
    ) -> Result<Timings> {
        let is_single = is_long || wanted.sweep.is_some();
        let sweep = wanted.sweep.as_ref().filter(|_| !is_long);
        self.visit(self.share() / VISITS, wanted.until, sweep, || run_us(stage, batch, is_single))
    }

    /// Times the first batch again. If its time has drifted, returns the number of blocks and both times in
    /// microseconds.
    fn drift(&self, stage: &mut SoloStage<'_>, timed: &[Timed]) -> Result<Option<(usize, [f64; 2])>> {
        let Some(Timed { batch, stats: first, segments, .. }) = timed.first() else { return Ok(None) };
        let last =
            self.visit(self.share(), 1.0, None, || Ok(stage.burst_us(batch)?))?.stats(self.is_processor);
        let drifted = (last.median_us / first.median_us - 1.0).abs() > DRIFT;
        Ok(drifted.then_some((segments.len(), [first.median_us, last.median_us])))
    }
}

/// Returns the time of a batch in microseconds. Runs it on its own if `is_single` is set, for example because a sweep has
/// evicted its weights. Otherwise, runs it in a burst.
fn run_us(stage: &mut SoloStage<'_>, batch: &SoloBatch, is_single: bool) -> Result<f64> {
    Ok(if is_single { stage.single_us(batch)? } else { stage.burst_us(batch)? })
}

/// Estimates the time of a batch on a segment. Only the ratios between the estimates of different segments
/// are meaningful.
fn work(key: &SegmentKey, batch: &SoloBatch) -> f64 {
    let work = key.work(&key.point(&micro_batch(batch)));
    (work.bytes * FLOPS_PER_BYTE).max(work.flops)
}

/// Times copies between a device and host memory. Returns the size of each copy in bytes, and its time in
/// microseconds, averaged over both directions.
fn host_copies(device: &mut SoloDevice, row_bytes: u64, left: Duration) -> Result<Vec<(u64, f64)>> {
    let sizes = [row_bytes].into_iter().chain(COPY_BYTES);
    let each = left / (COPY_BYTES.len() as u32 + 1);
    let copy = |bytes: u64| {
        let once = || Ok(device.host_copies_us(bytes)?.iter().sum::<f64>() / 2.0);
        Ok((bytes, undisturbed_us(Stats::times(REPETITIONS, each, once)?)))
    };
    sizes.map(copy).collect()
}

/// Times large copies from host memory to a device, in microseconds.
fn bulk_uploads_us(device: &mut SoloDevice, left: Duration) -> Result<Vec<f64>> {
    Ok(device.bulk_upload_us(LARGE_COPY_BYTES, LARGE_COPIES_US, REPETITIONS / 2, left)?)
}

/// Returns the rate of large copies with the given times in microseconds, in bytes per second. The first quartile
/// counts: other programs may use the bus during a part of the calibration, or more slightly all the time.
fn bulk_rate(mut times_us: Vec<f64>) -> f64 {
    times_us.sort_unstable_by(f64::total_cmp);
    let quartile = times_us.get(times_us.len() / 4).copied().unwrap_or(f64::INFINITY);
    (LARGE_COPY_BYTES as f64 / quartile.max(1e-3) * 1e6).max(1.0)
}

/// Measures the time to wake a sleeping thread, in microseconds.
fn wake_us() -> f64 {
    let (there, asked) = mpsc::channel::<()>();
    let (answer, back) = mpsc::channel::<()>();
    let echo = std::thread::spawn(move || while asked.recv().is_ok_and(|()| answer.send(()).is_ok()) {});
    let once = |_| {
        let start = Instant::now();
        let answered = there.send(()).is_ok() && back.recv().is_ok();
        answered.then(|| start.elapsed().as_secs_f64() * 1e6 / 2.0)
    };
    let times = (0..WAKES).filter_map(once).collect();
    drop(there);
    // The channel is closed, so the thread terminates.
    let _ = echo.join();
    undisturbed_us(times)
}
