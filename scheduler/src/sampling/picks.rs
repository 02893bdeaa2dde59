//! Samples tokens from the best logits of a row, which the device has found.

use super::{Candidate, SCRATCH, Sampler, SamplingError, Scratch, penalised};
use crate::sampling::Sampling;
use ragtag_kernels::picks::{BEST, DRAWN, NO_ID, RECORD_WORDS};

/// The best logits of a row: a record of [`ragtag_kernels::picks`].
#[derive(Clone, Copy, Debug)]
pub struct Picks<'a> {
    record: &'a [f32; RECORD_WORDS],
    vocabulary: u32,
}

impl<'a> Picks<'a> {
    /// Creates a view of a record for a row of `vocabulary` logits.
    pub fn new(record: &'a [f32; RECORD_WORDS], vocabulary: u32) -> Self {
        Self { record, vocabulary }
    }

    /// Returns the token that the device has drawn, if any.
    pub fn drawn(&self) -> Option<u32> {
        Some(self.record[DRAWN].to_bits()).filter(|id| *id != NO_ID)
    }

    /// Returns the logits and the ids of the candidates, best first.
    pub fn candidates(&self) -> impl Iterator<Item = (f32, u32)> + 'a {
        let (logits, ids) = self.record[..2 * BEST].split_at(BEST);
        logits.iter().copied().zip(ids.iter().map(|id| id.to_bits())).take_while(|(_, id)| *id != NO_ID)
    }
}

impl Sampler {
    /// Returns whether the next token may depend on logits that are not among the best [`BEST`] of a row. If it does
    /// not, [`Sampler::sample_picks`] takes the place of [`Sampler::sample`].
    pub fn wants_rows(&self) -> bool {
        let Sampling { temperature, top_k, repetition_penalty, .. } = self.settings;
        if self.settings.is_plain() {
            return false; // The device has drawn the token.
        }
        let kept = if temperature == 0.0 { 1 } else { top_k as usize };
        // A penalty above 1 lowers logits, so as many further candidates suffice as there are recent tokens. A smaller
        // one raises them.
        let raises = repetition_penalty < 1.0 && self.window() > 0;
        kept == 0 || raises || kept.saturating_add(self.window()) > BEST
    }

    /// Samples a token from the best logits of a row. The token and the draws are those of [`Sampler::sample`] with
    /// the whole row, unless [`Sampler::wants_rows`].
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`] if there are no candidates, and [`SamplingError::NoSuchToken`] if one of them
    /// is outside the vocabulary.
    pub fn sample_picks(&mut self, picks: &Picks<'_>, history: &[u32]) -> Result<u32, SamplingError> {
        let vocabulary = picks.vocabulary as usize;
        let ids = picks.candidates().map(|(_, id)| id).chain(picks.drawn());
        if let Some(token) = ids.into_iter().find(|id| *id >= picks.vocabulary) {
            return Err(SamplingError::NoSuchToken { token, vocabulary });
        }
        if self.settings.is_plain() {
            self.draws.next();
            return picks.drawn().ok_or(SamplingError::NoCandidate { logits: vocabulary });
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.collect_picks(&self.settings, picks, history);
            let token = scratch.choose(&self.settings, &mut self.draws);
            token.ok_or(SamplingError::NoCandidate { logits: vocabulary })
        })
    }
}

impl Scratch {
    /// Collects the candidates, and applies the repetition penalty.
    fn collect_picks(&mut self, settings: &Sampling, picks: &Picks<'_>, history: &[u32]) {
        self.find_recent(settings, history);
        let Self { candidates, recent, .. } = self;
        candidates.clear();
        candidates.extend(picks.candidates().filter_map(|(logit, id)| {
            let is_recent = recent.binary_search(&id).is_ok();
            let logit = if is_recent { penalised(logit, settings.repetition_penalty) } else { logit };
            Candidate::new(id, logit)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Noise, largest};
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Returns the record of a row, by a full sort. It has the first draw of a new sequence.
    fn record(logits: &[f32], noise: Option<Noise>) -> [f32; RECORD_WORDS] {
        let candidate = |(id, logit): (u32, &f32)| Candidate::new(id, *logit);
        let mut all: Vec<_> = (0..).zip(logits).filter_map(candidate).collect();
        all.sort_by(Candidate::before);
        let mut record = [f32::NEG_INFINITY; RECORD_WORDS];
        record[BEST..2 * BEST].fill(f32::from_bits(NO_ID));
        let drawn = noise.and_then(|noise| noise.draw().of(logits, 0, largest(logits)));
        record[DRAWN] = f32::from_bits(drawn.map_or(NO_ID, |(_, id)| id));
        for (at, candidate) in all.iter().take(BEST).enumerate() {
            (record[at], record[BEST + at]) = (candidate.logit, f32::from_bits(candidate.id));
        }
        record
    }

    fn random_row(random: &mut SmallRng) -> Vec<f32> {
        let vocabulary = random.random_range(1..3_000);
        // Few different values make ties.
        let values = [1.0, 10.0, 1e6][random.random_range(0..3)];
        let special = [f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
        let share = [0.0, 0.01, 0.999][random.random_range(0..3)];
        let logit = |random: &mut SmallRng| match random.random_bool(share) {
            true => special[random.random_range(0..special.len())],
            false => (random.random_range(-8.0f32..8.0) * values).round() / values,
        };
        (0..vocabulary).map(|_| logit(random)).collect()
    }

    fn random_settings(random: &mut SmallRng) -> Sampling {
        Sampling {
            temperature: [0.0, 0.8, 1.5][random.random_range(0..3)],
            top_k: [0, 1, 2, 40, 64, 65, 200][random.random_range(0..7)],
            top_p: [0.5, 0.95, 1.0][random.random_range(0..3)],
            min_p: [0.0, 0.05][random.random_range(0..2)],
            repetition_penalty: [1.0, 1.3, 0.7][random.random_range(0..3)],
            repetition_window: [0, 8, 24, 63, 64, u32::MAX][random.random_range(0..6)],
            seed: Some(random.random()),
        }
    }

    #[test]
    fn the_best_logits_give_the_tokens_and_draws_of_whole_rows() {
        let seed = test_support::seed();
        let (mut random, mut compared) = (SmallRng::seed_from_u64(seed), 0);
        for _ in 0..4_000 {
            let (logits, settings) = (random_row(&mut random), random_settings(&mut random));
            let mut whole = Sampler::new(settings).unwrap();
            if whole.wants_rows() {
                continue;
            }
            let mut best = whole.clone();
            let noise = whole.noise();
            let first = record(&logits, noise);
            let picks = Picks::new(&first, logits.len() as u32);
            let id = |random: &mut SmallRng| random.random_range(0..2 * logits.len() as u32);
            // Half of the history consists of the best tokens.
            let mut history: Vec<u32> = (0..40).map(|_| id(&mut random)).collect();
            history.extend(picks.candidates().map(|(_, id)| id).filter(|_| random.random()));
            for tokens in 0..3 {
                let record = record(&logits, noise.map(|noise| noise.after(tokens)));
                let picks = Picks::new(&record, logits.len() as u32);
                let expected = whole.sample(&logits, &history);
                let what = format!("RAGTAG_TEST_SEED {seed}: {settings:?} of {}", logits.len());
                assert_eq!(best.sample_picks(&picks, &history), expected, "{what}");
                assert_eq!(best.draws.0, whole.draws.0, "{what}");
                history.extend(expected);
            }
            compared += 1;
        }
        assert!(compared > 1_000, "{compared}");
    }

    #[test]
    fn settings_that_need_more_than_the_best_logits_read_whole_rows() {
        let wants = |settings: Sampling| Sampler::new(settings).unwrap().wants_rows();
        let default = Sampling::default();
        assert!(!wants(default) && !wants(Sampling::greedy()));
        let plain = Sampling { top_p: 1.0, min_p: 0.0, ..default };
        assert!(!wants(Sampling { top_k: 0, ..plain }) && wants(Sampling { top_k: 65, ..plain }));
        for (top_k, rows) in [(0, true), (1, false), (64, false), (65, true), (u32::MAX, true)] {
            assert_eq!(wants(Sampling { top_k, ..default }), rows, "{top_k}");
            assert!(!wants(Sampling { top_k, ..Sampling::greedy() }), "{top_k}");
        }
        for (repetition_penalty, repetition_window, rows) in [
            (1.1, 24, false),
            (1.1, 25, true),
            (1.1, 0, false),
            (0.9, 1, true),
            (0.9, 0, false),
            (1.0, 64, false),
        ] {
            let settings = Sampling { repetition_penalty, repetition_window, ..default };
            assert_eq!(wants(settings), rows, "{settings:?}");
        }
        let greedy = Sampling { repetition_penalty: 1.1, repetition_window: 63, ..Sampling::greedy() };
        assert!(!wants(greedy) && wants(Sampling { repetition_window: 64, ..greedy }));
    }

    #[test]
    fn invalid_records_are_errors() {
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        let record = record(&[1.0, 2.0, 3.0], None);
        let outside = SamplingError::NoSuchToken { token: 2, vocabulary: 2 };
        assert_eq!(sampler.sample_picks(&Picks::new(&record, 2), &[]), Err(outside));
        let empty = self::record(&[f32::NAN, f32::NEG_INFINITY], None);
        let none = SamplingError::NoCandidate { logits: 2 };
        assert_eq!(sampler.sample_picks(&Picks::new(&empty, 2), &[]), Err(none));
    }
}
