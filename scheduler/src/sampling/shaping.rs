//! Shapes the logits of a request before its sampler reads them, and reports log probabilities.
//!
//! Penalties come first, then biases, then the mask. All of them need whole rows of logits. Log probabilities are those
//! of the model: they ignore the shaping, the temperature and the filters.

use super::{Candidate, Sampler, SamplingError};
use crate::core::Sample;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::fmt;

/// Maximum number of biased tokens.
pub const MAX_BIASES: usize = 1024;
/// Maximum number of likely tokens whose log probabilities are reported.
pub const MAX_TOP: u32 = 20;

/// Changes of the logits of one request, and the log probabilities that it reports. The default changes and reports
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shaping {
    /// Amount to subtract from the logit of each token that was generated before, in [-2, 2].
    pub presence_penalty: f32,
    /// Amount to subtract from the logit of a token for each time that it was generated before, in [-2, 2].
    pub frequency_penalty: f32,
    /// Tokens with amounts to add to their logits, in [-100, 100]. At most [`MAX_BIASES`].
    pub bias: Vec<(u32, f32)>,
    /// Number of most likely tokens to report beside each generated one, at most [`MAX_TOP`]. `None` reports nothing.
    pub log_probabilities: Option<u32>,
}

impl Shaping {
    /// Returns whether the shaping needs whole rows of logits.
    pub fn reads_rows(&self) -> bool {
        *self != Self::default()
    }

    /// Checks the range of each setting.
    ///
    /// # Errors
    /// Returns an error for the first setting that is out of range. NaN is out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |name, value: f32, most: f32, wanted| match (-most..=most).contains(&value) {
            true => Ok(()),
            false => Err(SamplingError::Setting { name, value, wanted }),
        };
        check("presence-penalty", self.presence_penalty, 2.0, "from -2 to 2")?;
        check("frequency-penalty", self.frequency_penalty, 2.0, "from -2 to 2")?;
        for (_, amount) in &self.bias {
            check("logit-bias", *amount, 100.0, "from -100 to 100")?;
        }
        check("number of biased tokens", self.bias.len() as f32, MAX_BIASES as f32, "at most 1024")?;
        let top = self.log_probabilities.unwrap_or(0);
        check("number of log probabilities", top as f32, MAX_TOP as f32, "at most 20")
    }

    /// Shapes a row. `counts` has the number of times that each token was generated.
    fn apply(&self, counts: &FxHashMap<u32, u32>, row: &mut [f32]) {
        for (token, count) in counts {
            let penalty = self.presence_penalty + self.frequency_penalty * *count as f32;
            add(row, *token, -penalty);
        }
        self.bias.iter().for_each(|(token, amount)| add(row, *token, *amount));
    }
}

fn add(row: &mut [f32], token: u32, amount: f32) {
    if let Some(logit) = usize::try_from(token).ok().and_then(|token| row.get_mut(token)) {
        *logit += amount;
    }
}

/// Tokens that may follow in one generation, such as those that a grammar allows.
pub trait TokenMask: Send {
    /// Sets the logits of all tokens that must not follow to negative infinity.
    ///
    /// # Errors
    /// Returns a message if the mask cannot be computed. The sequence then ends.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Adds the sampled token. Returns whether the generation is complete.
    ///
    /// # Errors
    /// Returns a message if the token must not follow. The sequence then ends.
    fn accept(&mut self, token: u32) -> Result<bool, String>;
}

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProbability {
    /// Token id.
    pub token: u32,
    /// Logarithm of its probability. It may be negative infinity.
    pub log_probability: f64,
}

/// Log probabilities at the position of one token.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities {
    /// The token at the position.
    pub chosen: TokenLogProbability,
    /// The most likely tokens, most likely first.
    pub top: Vec<TokenLogProbability>,
}

impl LogProbabilities {
    /// Returns the log probability of `token` and those of the `top` most likely tokens.
    ///
    /// # Errors
    /// Those of [`token_log_probability`].
    pub fn of(logits: &[f32], token: u32, top: u32) -> Result<Self, SamplingError> {
        let total = Total::of(logits)?;
        let log_probability = total.log_probability(logit_of(logits, token)?);
        let top = likeliest(logits, top as usize).into_iter().map(|candidate| TokenLogProbability {
            token: candidate.id,
            log_probability: total.log_probability(candidate.logit),
        });
        Ok(Self { chosen: TokenLogProbability { token, log_probability }, top: top.collect() })
    }
}

/// Returns the best `count` candidates, best first. `count` is small.
fn likeliest(logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    for candidate in (0..).zip(logits).filter_map(|(id, logit)| Candidate::new(id, *logit)) {
        if best.len() == count && best.last().is_none_or(|last| last.before(&candidate).is_le()) {
            continue;
        }
        let at = best.partition_point(|other| other.before(&candidate).is_le());
        best.insert(at, candidate);
        best.truncate(count);
    }
    best
}

/// Returns the natural logarithm of the softmax probability of `token`, computed in f64.
///
/// # Errors
/// [`SamplingError::NotANumber`] if any logit is NaN. [`SamplingError::NoSuchToken`] if `token` is not in the
/// vocabulary. [`SamplingError::NoCandidate`] if no token has a probability above 0.
pub fn token_log_probability(logits: &[f32], token: u32) -> Result<f64, SamplingError> {
    let logit = logit_of(logits, token)?;
    Ok(Total::of(logits)?.log_probability(logit))
}

fn finite(logit: f32) -> f64 {
    f64::from(logit.min(f32::MAX))
}

fn logit_of(logits: &[f32], token: u32) -> Result<f32, SamplingError> {
    let none = SamplingError::NoSuchToken { token, vocabulary: logits.len() };
    usize::try_from(token).ok().and_then(|token| logits.get(token)).copied().ok_or(none)
}

/// The sum of the exponentials of all logits. The largest logit is apart, so that differences stay exact.
struct Total {
    best: f64,
    log_sum: f64,
}

impl Total {
    fn of(logits: &[f32]) -> Result<Self, SamplingError> {
        if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
            return Err(SamplingError::NotANumber { token });
        }
        let best = logits.iter().map(|logit| finite(*logit)).fold(f64::NEG_INFINITY, f64::max);
        if best == f64::NEG_INFINITY {
            return Err(SamplingError::NoCandidate { logits: logits.len() });
        }
        let sum: f64 = logits.iter().map(|logit| (finite(*logit) - best).exp()).sum();
        Ok(Self { best, log_sum: sum.ln() })
    }

    fn log_probability(&self, logit: f32) -> f64 {
        finite(logit) - self.best - self.log_sum
    }
}

/// A sampler that reads shaped logits.
pub struct ShapedSampler {
    sampler: Sampler,
    shaping: Shaping,
    mask: Option<Box<dyn TokenMask>>,
    /// Number of times that each token was generated. Empty without penalties.
    counts: FxHashMap<u32, u32>,
    report: Option<LogProbabilities>,
    is_done: bool,
}

impl fmt::Debug for ShapedSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sampler, shaping, .. } = self;
        f.debug_struct("ShapedSampler")
            .field("sampler", sampler)
            .field("shaping", shaping)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// A shaped row.
    static ROW: RefCell<Vec<f32>> = RefCell::default();
}

impl ShapedSampler {
    /// Creates a sampler that reads the logits that `shaping` and `mask` leave.
    ///
    /// # Errors
    /// The errors of [`Shaping::validate`].
    pub fn new(
        sampler: Sampler,
        shaping: Shaping,
        mask: Option<Box<dyn TokenMask>>,
    ) -> Result<Self, SamplingError> {
        shaping.validate()?;
        Ok(Self { sampler, shaping, mask, counts: FxHashMap::default(), report: None, is_done: false })
    }

    /// Samples a token from the shaped row.
    fn choose(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String> {
        ROW.with_borrow_mut(|row| {
            row.clear();
            row.extend_from_slice(logits);
            self.shaping.apply(&self.counts, row);
            if let Some(mask) = &mut self.mask {
                mask.restrict(row)?;
            }
            self.sampler.sample(row, history).map_err(|error| error.to_string())
        })
    }
}

impl Sample for ShapedSampler {
    fn window(&self) -> usize {
        self.sampler.window()
    }

    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String> {
        let token = self.choose(logits, history)?;
        if let Some(mask) = &mut self.mask {
            self.is_done = mask.accept(token)?;
        }
        if self.shaping.presence_penalty != 0.0 || self.shaping.frequency_penalty != 0.0 {
            *self.counts.entry(token).or_default() += 1;
        }
        if let Some(top) = self.shaping.log_probabilities {
            let report = LogProbabilities::of(logits, token, top);
            self.report = Some(report.map_err(|error| error.to_string())?);
        }
        Ok(token)
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn report(&mut self) -> Option<LogProbabilities> {
        self.report.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampling;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    fn shaped(sampling: Sampling, shaping: Shaping, mask: Option<Box<dyn TokenMask>>) -> ShapedSampler {
        ShapedSampler::new(Sampler::new(sampling).unwrap(), shaping, mask).unwrap()
    }

    #[test]
    fn penalties_count_generated_tokens_only() {
        let shaping = Shaping { presence_penalty: 0.5, frequency_penalty: 0.25, ..Shaping::default() };
        let mut sampler = shaped(Sampling::greedy(), shaping, None);
        assert!(sampler.wants_rows());
        // Token 0 leads by 1: it loses 0.75 after one time, and 1 after two times.
        let logits = [2.0, 1.1, 0.0];
        let tokens: Vec<u32> = (0..4).map(|_| sampler.sample(&logits, &[0, 0, 0, 0]).unwrap()).collect();
        assert_eq!(tokens, [0, 0, 1, 0]);
    }

    #[test]
    fn biases_add_to_logits_and_unknown_tokens_have_none() {
        let shaping = Shaping { bias: vec![(1, 100.0), (9, 100.0), (0, -100.0)], ..Shaping::default() };
        let mut sampler = shaped(Sampling { seed: Some(3), ..Sampling::default() }, shaping, None);
        assert!((0..50).all(|_| sampler.sample(&[9.0, -20.0, 9.0], &[]) == Ok(1)));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |shaping: Shaping| shaping.validate().unwrap_err().to_string();
        let bias = |amount| Shaping { bias: vec![(0, amount)], ..Shaping::default() };
        for amount in [f32::NAN, 100.5, f32::INFINITY] {
            assert!(refused(bias(amount)).contains("logit-bias"));
        }
        assert!(refused(Shaping { presence_penalty: 2.1, ..Shaping::default() }).contains("presence"));
        assert!(refused(Shaping { frequency_penalty: f32::NAN, ..Shaping::default() }).contains("frequency"));
        assert!(refused(Shaping { bias: vec![(0, 1.0); 1025], ..Shaping::default() }).contains("1025"));
        assert!(refused(Shaping { log_probabilities: Some(21), ..Shaping::default() }).contains("21"));
        assert!(
            Shaping { bias: vec![(0, -100.0); 1024], log_probabilities: Some(20), ..Shaping::default() }
                .validate()
                .is_ok()
        );
    }

    /// Allows even tokens, and ends after three of them.
    struct Even(u32);

    impl TokenMask for Even {
        fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
            logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<bool, String> {
            self.0 += 1;
            if token.is_multiple_of(2) { Ok(self.0 == 3) } else { Err("odd".into()) }
        }
    }

    #[test]
    fn a_mask_wins_over_biases_and_ends_the_generation() {
        let shaping = Shaping { bias: vec![(1, 100.0)], ..Shaping::default() };
        let sampling = Sampling { seed: Some(1), top_k: 2, ..Sampling::default() };
        let mut sampler = shaped(sampling, shaping, Some(Box::new(Even(0))));
        let logits: Vec<f32> = (0..600).map(|token| (token % 7) as f32).collect();
        let mut done = Vec::new();
        for _ in 0..3 {
            let token = sampler.sample(&logits, &[]).unwrap();
            assert!(token.is_multiple_of(2) && token % 7 == 6, "{token}");
            done.push(sampler.is_done());
        }
        assert_eq!(done, [false, false, true]);
        assert!(sampler.sample(&[f32::NEG_INFINITY, 1.0], &[]).unwrap_err().contains("cannot sample"));
    }

    #[test]
    fn log_probabilities_are_those_of_the_unshaped_softmax() {
        let mut random = SmallRng::seed_from_u64(7);
        for _ in 0..50 {
            let logits: Vec<f32> = (0..300).map(|_| random.random_range(-30.0..30.0)).collect();
            let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            let shaping = Shaping { log_probabilities: Some(5), bias: vec![(3, 50.0)], ..Shaping::default() };
            let mut sampler = shaped(Sampling { temperature: 5.0, ..Sampling::default() }, shaping, None);
            let token = sampler.sample(&logits, &[]).unwrap();
            let report = sampler.report().unwrap();
            assert!(sampler.report().is_none());
            let mut order: Vec<u32> = (0..300).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            assert_eq!(report.chosen.token, token);
            assert_eq!(report.top.iter().map(|top| top.token).collect::<Vec<_>>(), order[..5]);
            for TokenLogProbability { token, log_probability } in report.top.iter().chain([&report.chosen]) {
                let expected = f64::from(logits[*token as usize]) - total.ln();
                assert!((log_probability - expected).abs() < 1e-9, "{log_probability} instead of {expected}");
            }
        }
        assert!(LogProbabilities::of(&[0.0, f32::NAN], 0, 1).is_err());
        assert!(LogProbabilities::of(&[0.0], 1, 1).is_err());
        assert!(LogProbabilities::of(&[0.0, f32::NEG_INFINITY], 1, 20).unwrap().top.len() == 1);
        assert!(LogProbabilities::of(&[1.0, 0.0], 0, 0).unwrap().top.is_empty());
    }
}
