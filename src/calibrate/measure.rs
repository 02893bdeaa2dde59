//! Timing: stages of a few segments on a device by itself, and copies between devices.
//!
//! A stage of no dispatches says what a micro-batch costs however many segments it passes; that is taken off every other
//! time, and what is left is divided among the segments of the stage.

use super::is_processor;
use super::steps::{Patience, Steps, micro_batch};
use crate::engine::FileWeights;
use crate::error::Result;
use crate::model::Model;
use ragtag_scheduler::cost::{
    KindProfile, PROFILE_VERSION, Profile, ProfileIdentity, Roofline, SegmentKey, TimePoint, TimeSample,
    TokenReturn, fit_copies,
};
use ragtag_scheduler::{Crossing, LinkFacts, Sampler, Sampling, SoloBatch, SoloDevice, SoloStage};
use ragtag_transfer::Route;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Most repetitions of anything.
const MOST: usize = 200;
/// Repetitions of what is quick: copies, hand-overs.
const REPETITIONS: usize = 25;
/// Sizes of the copies that are timed.
const COPY_BYTES: [u64; 4] = [4 << 10, 64 << 10, 512 << 10, 2 << 20];
/// How much slower or faster the last repetition of the reference may be before somebody should hear of it.
const DRIFT: f64 = 0.15;

/// Median and spread of some times.
#[derive(Clone, Copy, Debug)]
struct Stats {
    median_us: f64,
    spread_us: f64,
    count: u32,
}

impl Stats {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        let at = |quarters: usize| times.get((times.len().saturating_sub(1)) * quarters / 4).copied();
        let quartile = |quarters| at(quarters).unwrap_or(0.0);
        Self { median_us: quartile(2), spread_us: quartile(3) - quartile(1), count: times.len() as u32 }
    }

    /// Some times of a thing, after one that does not count: as many as go into `limit`, three at least unless they take
    /// very long.
    fn taken(limit: Duration, mut once: impl FnMut() -> Result<f64>) -> Result<Self> {
        let start = Instant::now();
        once()?;
        let mut times = Vec::new();
        loop {
            times.push(once()?);
            let patience = if times.len() < 3 { limit * 4 } else { limit };
            if times.len() == MOST || start.elapsed() >= patience {
                return Ok(Self::of(times));
            }
        }
    }

    fn sample(&self, at: TimePoint, of: impl Fn(f64) -> f64) -> TimeSample {
        // The spread is scaled as the median is.
        let median_us = of(self.median_us).max(0.0);
        let spread_us = self.spread_us * (median_us / self.median_us.max(1e-9)).min(1.0);
        TimeSample { at, median_us, spread_us, count: self.count }
    }
}

/// The lowest tenth of some times: for hand-overs, which wait for threads of the host, what they take on a host that has
/// nothing else to do. A profile is kept for longer than a host is busy.
fn undisturbed_us(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(0.0)
}

/// Goes over so much of the host's memory that what a processor had in its caches is there no more: in a run blocks come before
/// the head, and it never finds its weights where it left them.
struct Sweep(Vec<u64>);

impl Sweep {
    fn new(bytes: usize) -> Self {
        let mut words = Vec::new();
        // Without the memory for it the caches stay as they are.
        if words.try_reserve_exact(bytes / 8).is_ok() {
            words.resize(bytes / 8, 0);
        }
        Self(words)
    }

    fn go(&mut self) {
        /// Of a line in a cache.
        const WORDS: usize = 8;
        self.0.par_chunks_mut(1 << 16).for_each(|part| part.iter_mut().step_by(WORDS).for_each(|w| *w += 1));
        std::hint::black_box(&mut self.0);
    }
}

/// Times one device.
pub(super) struct Timer<'a> {
    pub(super) model: &'a Model,
    pub(super) steps: &'a Steps,
    /// For everything, about.
    pub(super) seconds: f64,
    pub(super) tick: &'a (dyn Fn() + Sync),
}

impl Timer<'_> {
    /// Everything that a profile has, with warnings.
    pub(super) fn profile(
        &self,
        identity: &ProfileIdentity,
        device: &mut SoloDevice,
    ) -> Result<(Profile, Vec<String>)> {
        let steps = self.steps;
        let stage_us = self.stage_us(device)?;
        let mut kinds = Vec::new();
        if let Some(kind) = self.embedding(device, stage_us)? {
            kinds.push(kind);
        }
        let (head, token_return) = self.head(device, stage_us, identity.together)?;
        let (blocks, warnings) = self.blocks(device, stage_us)?;
        kinds.extend(blocks);
        kinds.push(head);
        let copies = host_copies(device, steps.row_bytes())?;
        let (host_latency_us, host_bandwidth_bytes_per_s) = fit_copies(&copies);
        let profile = Profile {
            ragtag_profile: PROFILE_VERSION,
            identity: identity.clone(),
            stage_us,
            // Timed when no device is in use.
            hand_over_us: 0.0,
            host_latency_us,
            host_bandwidth_bytes_per_s,
            token_return,
            roofline: Roofline::fit(&kinds),
            kinds,
        };
        Ok((profile, warnings))
    }

    /// Time for one of the things that are timed.
    fn share(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.0, 3600.0) / self.steps.count() as f64)
    }

    fn load<'d>(&self, device: &'d mut SoloDevice, segments: Range<usize>) -> Result<SoloStage<'d>> {
        let compiled = self.steps.compile(segments, device.adapter())?;
        let weights = FileWeights::new(self.model, &compiled);
        Ok(device.load(compiled, &weights)?)
    }

    fn time(&self, stage: &mut SoloStage<'_>, batch: &SoloBatch) -> Result<Stats> {
        let stats = Stats::taken(self.share(), || Ok(stage.burst_us(batch)?));
        (self.tick)();
        stats
    }

    /// What a micro-batch takes on a stage that does nothing with it.
    fn stage_us(&self, device: &mut SoloDevice) -> Result<f64> {
        let first = self.steps.window.start.min(self.steps.head());
        let mut compiled = self.steps.compile(first..first + 1, device.adapter())?;
        compiled.programs.iter_mut().for_each(|program| program.steps.clear());
        let weights = FileWeights::new(self.model, &compiled);
        let mut stage = device.load(compiled, &weights)?;
        Ok(self.time(&mut stage, &SoloBatch::chunk(1, 0))?.median_us)
    }

    fn embedding(&self, device: &mut SoloDevice, stage_us: f64) -> Result<Option<KindProfile>> {
        let rows = self.steps.embedding_rows();
        if rows.is_empty() {
            return Ok(None);
        }
        let mut stage = self.load(device, 0..1)?;
        let sample = |&rows: &u32| {
            let stats = self.time(&mut stage, &SoloBatch::chunk(rows, 0))?;
            let at = TimePoint { rows, sequences: rows, positions: 0.0 };
            Ok(stats.sample(at, |us| us - stage_us))
        };
        let samples = rows.iter().map(sample).collect::<Result<_>>()?;
        Ok(Some(KindProfile::new(self.steps.keys[0], samples)))
    }

    /// The head, and the return of tokens; so many parts of a processor are timed at the same time.
    fn head(
        &self,
        device: &mut SoloDevice,
        stage_us: f64,
        together: u32,
    ) -> Result<(KindProfile, TokenReturn)> {
        let head = self.steps.head();
        let sweep_bytes = self.steps.sweep_bytes() / together.max(1) as usize;
        let mut sweep = is_processor(device.adapter()).then(|| Sweep::new(sweep_bytes));
        let mut stage = self.load(device, head..head + 1)?;
        let mut samples = Vec::new();
        for &rows in &self.steps.head_rows {
            let batch = SoloBatch::decode(rows, 1);
            let once = || match &mut sweep {
                None => Ok(stage.burst_us(&batch)?),
                Some(sweep) => {
                    sweep.go();
                    Ok(stage.single_us(&batch)?)
                }
            };
            let stats = Stats::taken(self.share(), once)?;
            (self.tick)();
            let at = TimePoint { rows, sequences: rows, positions: 0.0 };
            samples.push(stats.sample(at, |us| us - stage_us));
        }
        let greedy = Sampler::new(Sampling::greedy());
        let mut sampler = greedy.map_err(|error| crate::Error::Usage(error.to_string()))?;
        let mut choose = |logits: &[f32]| drop(std::hint::black_box(sampler.sample(logits, &[])));
        let mut hand_over = |rows: u32| {
            let batch = SoloBatch::decode(rows, 1);
            let times = (0..REPETITIONS).map(|_| Ok(stage.hand_over_us(&batch, &mut choose)?));
            Ok::<_, crate::Error>(undisturbed_us(times.collect::<Result<_>>()?))
        };
        let most = self.steps.head_rows.last().copied().unwrap_or(1);
        let one_us = hand_over(1)?;
        // Of a row: its copy, reading it and choosing a token.
        let row_us =
            if most > 1 { ((hand_over(most)? - one_us) / f64::from(most - 1)).max(0.0) } else { 0.0 };
        // The coordinator is woken by the device, which the hand-over has in it, and wakes the first stage in turn.
        let latency_us = one_us - row_us + wake_us();
        let token_return = TokenReturn { latency_us: latency_us.max(0.0), row_us };
        Ok((KindProfile::new(self.steps.keys[head], samples), token_return))
    }

    /// The kinds of segments between embedding and head. Those of the window share its time as they take it alone.
    fn blocks(&self, device: &mut SoloDevice, stage_us: f64) -> Result<(Vec<KindProfile>, Vec<String>)> {
        let steps = self.steps;
        if steps.window.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let (whole, warnings) = self.window(device, stage_us)?;
        let batches = || steps.batches.iter().zip(&whole).filter_map(|(batch, time)| Some((batch, (*time)?)));
        let uniform = steps.is_uniform();
        // Of each kind that is timed alone, the time of each batch.
        let mut alone: Vec<(usize, Vec<Stats>)> = Vec::new();
        for &segment in steps.kinds.iter().filter(|&&segment| !uniform || segment != steps.window.start) {
            let mut stage = self.load(device, segment..segment + 1)?;
            let times = batches().map(|(batch, _)| self.time(&mut stage, batch));
            alone.push((segment, times.collect::<Result<_>>()?));
        }
        let of_key = |key: SegmentKey| alone.iter().find(|(segment, _)| steps.keys[*segment] == key);
        let net_us = |stats: &Stats| (stats.median_us - stage_us).max(0.0);
        let kind = |&segment: &usize| {
            let key = steps.keys[segment];
            let inside = steps.window.clone().any(|other| steps.keys[other] == key);
            let sample = |(index, (batch, whole)): (usize, (&SoloBatch, Stats))| {
                let at = key.point(&micro_batch(batch));
                let together_us = net_us(&whole);
                let own = of_key(key).map(|(_, times)| times[index]);
                match own {
                    None => whole.sample(at, |_| together_us / steps.window.len() as f64),
                    Some(own) if !inside => own.sample(at, |us| us - stage_us),
                    Some(own) => {
                        let each = steps.window.clone().filter_map(|s| of_key(steps.keys[s]));
                        let sum_us: f64 = each.map(|(_, times)| net_us(&times[index])).sum();
                        let factor = if sum_us > 0.0 { together_us / sum_us } else { 1.0 };
                        own.sample(at, |us| (us - stage_us) * factor)
                    }
                }
            };
            KindProfile::new(key, batches().enumerate().map(sample).collect())
        };
        Ok((steps.kinds.iter().map(kind).collect(), warnings))
    }

    /// The times of the window for each batch; none of chunks that are too long to be worth it. The first is timed once more
    /// at the end: whether the device has drifted. If so all are timed again, for what was slow may have been the start.
    fn window(&self, device: &mut SoloDevice, stage_us: f64) -> Result<(Vec<Option<Stats>>, Vec<String>)> {
        let label = device.adapter().label();
        let mut stage = self.load(device, self.steps.window.clone())?;
        let mut times = self.batches(&mut stage, stage_us, self.tick)?;
        let mut drift = self.drift(&mut stage, &times)?;
        if drift.is_some() {
            times = self.batches(&mut stage, stage_us, &|| ())?;
            drift = self.drift(&mut stage, &times)?;
        }
        let warning = drift.map(|[first, last]| {
            let blocks = self.steps.window.len();
            format!("{label} drifts: {blocks} blocks took {first:.0} µs at first and {last:.0} µs at last")
        });
        Ok((times, warning.into_iter().collect()))
    }

    /// The times of a stage for each batch.
    fn batches(
        &self,
        stage: &mut SoloStage<'_>,
        stage_us: f64,
        tick: &dyn Fn(),
    ) -> Result<Vec<Option<Stats>>> {
        let mut patience = Patience::default();
        let time = |batch: &SoloBatch| {
            if !patience.allows(batch) {
                return Ok(None);
            }
            let stats = Stats::taken(self.share(), || Ok(stage.burst_us(batch)?))?;
            tick();
            patience.note(batch, stats.median_us - stage_us);
            Ok(Some(stats))
        };
        self.steps.batches.iter().map(time).collect()
    }

    /// What the first batch took at first and takes now, if that is not the same.
    fn drift(&self, stage: &mut SoloStage<'_>, times: &[Option<Stats>]) -> Result<Option<[f64; 2]>> {
        let (Some(batch), Some(Some(first))) = (self.steps.batches.first(), times.first()) else {
            return Ok(None);
        };
        let last = Stats::taken(self.share(), || Ok(stage.burst_us(batch)?))?;
        let drifted = (last.median_us / first.median_us - 1.0).abs() > DRIFT;
        Ok(drifted.then_some([first.median_us, last.median_us]))
    }
}

/// Times of copies between a device and host memory, both ways together halved: (bytes, microseconds).
fn host_copies(device: &mut SoloDevice, row_bytes: u64) -> Result<Vec<(u64, f64)>> {
    let copy = |bytes: u64| {
        let once = |_| Ok(device.host_copies_us(bytes)?.iter().sum::<f64>() / 2.0);
        let times = (0..REPETITIONS).map(once).collect::<Result<_>>()?;
        Ok((bytes, undisturbed_us(times)))
    };
    [row_bytes].into_iter().chain(COPY_BYTES).map(copy).collect()
}

/// The way between two devices, by their places.
pub(super) fn link(
    devices: &mut [SoloDevice],
    (from, to): (usize, usize),
    row_bytes: u64,
) -> Result<LinkFacts> {
    let (low, high) = devices.split_at_mut(from.max(to));
    let (low, high) = (&mut low[from.min(to)], &mut high[0]);
    let (from, to) = if from < to { (low, high) } else { (high, low) };
    let most = COPY_BYTES.into_iter().fold(row_bytes, u64::max);
    let mut crossing = Crossing::new(from, to, Route::HOST_STAGED, most)?;
    let idle = (0..REPETITIONS).map(|_| Ok(crossing.hand_over_us()?)).collect::<Result<_>>()?;
    let hand_over_us = undisturbed_us(idle);
    let mut samples = Vec::new();
    for bytes in [row_bytes].into_iter().chain(COPY_BYTES) {
        crossing.time_us(bytes)?;
        let times = (0..REPETITIONS).map(|_| Ok(crossing.time_us(bytes)?)).collect::<Result<_>>()?;
        samples.push((bytes, (undisturbed_us(times) - hand_over_us).max(0.0)));
    }
    Ok(LinkFacts::fitted(Route::HOST_STAGED, &samples))
}

/// Time from one thread's word until another one, asleep, goes on.
fn wake_us() -> f64 {
    let (there, asked) = mpsc::channel::<()>();
    let (answer, back) = mpsc::channel::<()>();
    let echo = std::thread::spawn(move || while asked.recv().is_ok_and(|()| answer.send(()).is_ok()) {});
    let once = |_| {
        let start = Instant::now();
        let answered = there.send(()).is_ok() && back.recv().is_ok();
        answered.then(|| start.elapsed().as_secs_f64() * 1e6 / 2.0)
    };
    let times = (0..MOST).filter_map(once).collect();
    drop(there);
    // It has nothing more to do.
    let _ = echo.join();
    undisturbed_us(times)
}
