//! Samples the next token from logits: greedily, or from a filtered distribution.
//!
//! The filters run in llama.cpp's order: repetition penalty, top-k, top-p, min-p, temperature. Top-p and
//! min-p therefore use the probabilities before the temperature is applied. A sampler has its own random
//! generator, so its results are deterministic. Identical settings with a seed, logits and histories produce
//! identical tokens on every machine. The one exception are draws without filters from two tokens that nearly tie: devices
//! round their logarithms differently.
//!
//! Most settings depend only on the best logits of a row, so the host reads these alone: see [`Picks`]. A temperature
//! without filters needs all logits. Then the device draws the token: see [`Noise`].
//!
//! This module does not depend on the source of the logits.

mod noise;
mod picks;
pub mod shaping;

pub use noise::Noise;
pub use picks::Picks;
pub use shaping::token_log_probability;

use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use thiserror::Error;

/// Sampling settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits. If it is 0, the sampler always selects the token with the largest logit, and
    /// the lowest id among equal logits. Without filters and penalties, others count as at least 0.001 and at most 1000.
    pub temperature: f32,
    /// Number of most likely tokens to keep. The value 0 keeps all tokens.
    pub top_k: u32,
    /// Total probability to keep, in (0, 1]. The sampler keeps as few tokens as possible, most likely first,
    /// until their total reaches this value. The value 1 keeps all tokens.
    pub top_p: f32,
    /// Minimum probability of a kept token, as a fraction of the highest probability, in [0, 1]. The value 0
    /// keeps all tokens.
    pub min_p: f32,
    /// Penalty for recent tokens, above 0. Their positive logits are divided by it, and their negative logits
    /// are multiplied by it. The value 1 has no effect.
    pub repetition_penalty: f32,
    /// Number of tokens at the end of the history that count as recent. The value 0 disables the repetition
    /// penalty.
    pub repetition_window: u32,
    /// Seed of the random generator. `None` draws one for each sampler.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// Returns settings with temperature 0.8, top-k 40, top-p 0.95 and a drawn seed.
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            repetition_window: 64,
            seed: None,
        }
    }
}

impl Sampling {
    /// Returns settings that always select the token with the largest logit.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks the range of each setting.
    ///
    /// # Errors
    /// Returns an error for the first setting that is out of range. NaN is out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |name, value: f32, valid: bool, wanted| {
            if valid { Ok(()) } else { Err(SamplingError::Setting { name, value, wanted }) }
        };
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = *self;
        let finite = |value: f32| value.is_finite();
        check(
            "temperature",
            temperature,
            finite(temperature) && temperature >= 0.0,
            "finite and at least 0",
        )?;
        check("top-p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
        check("min-p", min_p, (0.0..=1.0).contains(&min_p), "from 0 to 1")?;
        let penalty = repetition_penalty;
        check("repetition-penalty", penalty, finite(penalty) && penalty > 0.0, "finite and above 0")
    }
}

/// A sampling failure.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SamplingError {
    /// A setting that is out of range.
    #[error("{name} is {value}; it must be {wanted}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting.
        value: f32,
        /// Description of the valid range.
        wanted: &'static str,
    },
    /// All logits are NaN or negative infinity, or there are no logits.
    #[error("cannot sample a token: all {logits} logits are NaN or negative infinity")]
    NoCandidate {
        /// Number of logits.
        logits: usize,
    },
    /// A logit is NaN, so no probability can be computed.
    #[error("the logit of token {token} is NaN")]
    NotANumber {
        /// The token.
        token: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// Number of logits.
        vocabulary: usize,
    },
}

/// A token and its logit, ordered by preference: larger logits first, then lower ids.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// Returns a candidate, or `None` if the logit is NaN or negative infinity.
    fn new(id: u32, logit: f32) -> Option<Self> {
        // Infinities would produce NaN in the differences of logits, so clamp them to the largest finite number.
        // Adding zero turns -0.0 into 0.0, because `total_cmp` distinguishes them.
        (logit > f32::NEG_INFINITY).then(|| Self { logit: logit.min(f32::MAX) + 0.0, id })
    }

    fn before(&self, other: &Self) -> std::cmp::Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Returns the logit of a recent token. Infinity counts as the largest finite number.
fn penalised(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 { logit.min(f32::MAX) / penalty } else { logit * penalty }
}

/// Returns the token with the largest logit, and the lowest id among equal logits. Devices wait for the
/// result, so this function is optimised. It finds the largest logit of each block in one pass, and then
/// scans only the best block for its position.
fn likeliest(logits: &[f32]) -> Option<u32> {
    const BLOCK: usize = 1024;
    let (mut best, mut first) = (f32::NEG_INFINITY, 0);
    for (start, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        let largest = largest(block);
        if largest > best {
            (best, first) = (largest, start);
        }
    }
    let logits = logits.get(first..).filter(|_| best > f32::NEG_INFINITY)?;
    u32::try_from(first + logits.iter().position(|&logit| logit >= best)?).ok()
}

/// Returns the largest logit. The loop uses independent lanes, so that the compiler can vectorise it.
/// Infinity is clamped to the largest finite number. The result is negative infinity if all logits are NaN.
fn largest(logits: &[f32]) -> f32 {
    let (lanes, rest) = logits.as_chunks::<16>();
    let mut best = [f32::NEG_INFINITY; 16];
    for lane in lanes {
        for (best, &logit) in best.iter_mut().zip(lane) {
            // The comparison is false for NaN, so NaN is skipped.
            *best = if logit > *best { logit } else { *best };
        }
    }
    best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max).min(f32::MAX)
}

/// Samples tokens for one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Sampling,
    seed: u64,
    draws: SplitMix64,
}

impl Sampler {
    /// Creates a sampler at the start of its random stream.
    ///
    /// # Errors
    /// The errors of [`Sampling::validate`].
    pub fn new(settings: Sampling) -> Result<Self, SamplingError> {
        settings.validate()?;
        let seed = settings.seed.unwrap_or_else(drawn_seed);
        Ok(Self { settings, seed, draws: SplitMix64(seed) })
    }

    /// Returns the seed. With this seed, another sampler draws the same numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Sampling {
        &self.settings
    }

    /// Returns the number of recent tokens that matter.
    pub fn window(&self) -> usize {
        let Sampling { repetition_penalty, repetition_window, .. } = self.settings;
        if repetition_penalty == 1.0 { 0 } else { usize::try_from(repetition_window).unwrap_or(usize::MAX) }
    }

    /// Samples a token. `logits` has one value per token of the vocabulary. `history` holds the prompt and
    /// all tokens generated so far, or the last of them, with the latest token last. NaN logits are ignored.
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`] if every logit is NaN or negative infinity.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SamplingError> {
        let none = SamplingError::NoCandidate { logits: logits.len() };
        if self.settings.temperature == 0.0 && self.settings.repetition_penalty == 1.0 {
            return likeliest(logits).ok_or(none);
        }
        if self.settings.is_plain() {
            return self.draw_plain(logits).ok_or(none);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.collect(&self.settings, logits, history);
            scratch.choose(&self.settings, &mut self.draws).ok_or(none)
        })
    }
}

/// Number of logits per block in the scan for the best logits.
const BLOCK: usize = 128;

/// Buffers of a draw. Without top-k, the candidates of a large vocabulary take megabytes, so each thread that samples
/// has one set of buffers for all sequences.
#[derive(Debug, Default)]
struct Scratch {
    candidates: Vec<Candidate>,
    recent: Vec<u32>,
    largest: Vec<f32>,
    ranked: Vec<f32>,
    weights: Vec<f64>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// Returns a token of the candidates, or `None` if there are none.
    fn choose(&mut self, settings: &Sampling, draws: &mut SplitMix64) -> Option<u32> {
        if settings.temperature == 0.0 {
            return self.candidates.iter().min_by(|a, b| a.before(b)).map(|c| c.id);
        }
        if self.candidates.is_empty() {
            return None;
        }
        self.keep_top_k(settings.top_k);
        self.keep_top_p(settings.top_p);
        self.keep_min_p(settings.min_p);
        Some(self.draw(settings.temperature, draws))
    }

    /// Collects the candidates, and applies the repetition penalty. With top-k, tokens that are surely not among the
    /// best `top_k` may be absent.
    fn collect(&mut self, settings: &Sampling, logits: &[f32], history: &[u32]) {
        let Sampling { top_k, repetition_penalty: penalty, .. } = *settings;
        self.find_recent(settings, history);
        match self.floor(top_k, logits) {
            Some(floor) => self.collect_from(floor, logits, penalty),
            None => self.collect_all(logits, penalty),
        }
    }

    /// Finds the recent tokens, if there is a penalty for them.
    fn find_recent(&mut self, settings: &Sampling, history: &[u32]) {
        self.recent.clear();
        if settings.repetition_penalty != 1.0 {
            let window = usize::try_from(settings.repetition_window).unwrap_or(usize::MAX).min(history.len());
            self.recent.extend_from_slice(&history[history.len() - window..]);
            self.recent.sort_unstable();
            self.recent.dedup();
        }
    }

    /// Returns a logit that at least `top_k` tokens without penalty reach, or `None` if there are too few blocks of
    /// logits to find one. Of as many blocks as `top_k` and the penalised tokens together, each has a logit that is
    /// at least as large as the result.
    fn floor(&mut self, top_k: u32, logits: &[f32]) -> Option<f32> {
        let last = usize::try_from(top_k).ok()?.checked_sub(1)?.checked_add(self.recent.len())?;
        if last >= logits.len().div_ceil(BLOCK) {
            return None;
        }
        self.largest.clear();
        self.largest.extend(logits.chunks(BLOCK).map(largest));
        self.ranked.clone_from(&self.largest);
        let (_, floor, _) = self.ranked.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
        Some(*floor)
    }

    /// Collects all tokens with a penalty, and those of the others whose logit is at least `floor`.
    fn collect_from(&mut self, floor: f32, logits: &[f32], penalty: f32) {
        let Self { candidates, recent, largest, .. } = self;
        let penalised = recent.iter().filter_map(|&id| {
            let logit = *logits.get(usize::try_from(id).ok()?)?;
            Candidate::new(id, penalised(logit, penalty))
        });
        candidates.clear();
        candidates.extend(penalised);
        let blocks = (0u32..).step_by(BLOCK).zip(logits.chunks(BLOCK)).zip(largest);
        for ((first, block), _) in blocks.filter(|(_, largest)| **largest >= floor) {
            let reaching = (first..)
                .zip(block)
                .filter(|(id, logit)| **logit >= floor && recent.binary_search(id).is_err());
            candidates.extend(reaching.filter_map(|(id, logit)| Candidate::new(id, *logit)));
        }
    }

    /// Collects all tokens.
    fn collect_all(&mut self, logits: &[f32], penalty: f32) {
        let Self { candidates, recent, .. } = self;
        // Both lists are in ascending order, so one pass finds every recent token.
        let mut recent = recent.iter().copied().peekable();
        candidates.clear();
        candidates.extend((0u32..).zip(logits).filter_map(|(id, &logit)| {
            let is_recent = recent.next_if_eq(&id).is_some();
            Candidate::new(id, if is_recent { penalised(logit, penalty) } else { logit })
        }));
    }

    fn keep_top_k(&mut self, k: u32) {
        let k = usize::try_from(k).unwrap_or(usize::MAX);
        if k > 0 {
            self.sort_best(k);
            self.candidates.truncate(k);
        }
    }

    /// Moves the best `count` candidates to the front and sorts them. The others stay unsorted.
    fn sort_best(&mut self, count: usize) {
        if count < self.candidates.len() {
            self.candidates.select_nth_unstable_by(count, Candidate::before);
            self.candidates[..count].sort_unstable_by(Candidate::before);
        } else {
            self.candidates.sort_unstable_by(Candidate::before);
        }
    }

    fn best_logit(&self) -> f32 {
        self.candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    fn keep_top_p(&mut self, p: f32) {
        let p = f64::from(p);
        if p >= 1.0 {
            return;
        }
        let best = f64::from(self.best_logit());
        let weight = |c: &Candidate| (f64::from(c.logit) - best).exp();
        let wanted = p * self.candidates.iter().map(weight).sum::<f64>();
        // A few tokens usually reach the probability, so sort only as many as needed.
        let mut sorted = 64;
        loop {
            self.sort_best(sorted);
            let mut sum = 0.0;
            let reaches = |c: &Candidate| {
                sum += weight(c);
                sum >= wanted
            };
            let front = &self.candidates[..sorted.min(self.candidates.len())];
            match front.iter().position(reaches) {
                Some(last) => return self.candidates.truncate(last + 1),
                None if sorted >= self.candidates.len() => return,
                None => sorted *= 8,
            }
        }
    }

    fn keep_min_p(&mut self, min_p: f32) {
        let min_p = f64::from(min_p);
        if min_p > 0.0 {
            let best = f64::from(self.best_logit());
            self.candidates.retain(|c| (f64::from(c.logit) - best).exp() >= min_p);
        }
    }

    fn draw(&mut self, temperature: f32, draws: &mut SplitMix64) -> u32 {
        let best = f64::from(self.best_logit());
        let temperature = f64::from(temperature);
        self.weights.clear();
        self.weights
            .extend(self.candidates.iter().map(|c| ((f64::from(c.logit) - best) / temperature).exp()));
        let mut left = draws.unit() * self.weights.iter().sum::<f64>();
        for (candidate, weight) in self.candidates.iter().zip(&self.weights) {
            if left < *weight {
                return candidate.id;
            }
            left -= weight;
        }
        // Rounding may leave a remainder after the last weight. Assign it to the last token with a positive
        // weight.
        let last = self.weights.iter().rposition(|w| *w > 0.0).unwrap_or(0);
        self.candidates[last].id
    }
}

/// Returns a random seed of 32 bits. Users can type it, and every JSON reader keeps it.
fn drawn_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}

/// The SplitMix64 random generator (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// 2014): a counter with a mixing function. Users rely on a seed always producing the same numbers. The
/// generator is implemented here because an external crate could change its numbers.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Skips `count` numbers.
    fn skip(&mut self, count: u32) {
        self.0 = self.0.wrapping_add(Self::STEP.wrapping_mul(count.into()));
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform random number in [0, 1), in steps of 2^-53.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
