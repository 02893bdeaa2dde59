//! Report of a load.

use super::Load;
use super::events::Answer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Distribution of times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Distribution {
    pub mean_s: f64,
    pub p50_s: f64,
    pub p90_s: f64,
    pub p99_s: f64,
    pub max_s: f64,
}

/// Result of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// Base URL of the server.
    pub url: String,
    /// Name of the model.
    pub model: String,
    /// `chat` or `completions`.
    pub api: &'static str,
    /// Number of clients, unless requests came at a rate.
    pub clients: Option<u32>,
    /// Average number of requests per second, if requests came at a rate.
    pub rate_per_s: Option<f64>,
    /// Number of requests that were asked for.
    pub requests: u32,
    /// Number of whole answers.
    pub answers: u64,
    /// Reasons of failed requests, with their number.
    pub errors: BTreeMap<String, u64>,
    /// Whether Ctrl-C ended the load.
    pub is_interrupted: bool,
    /// Time from the first request to the last answer, in seconds.
    pub wall_s: f64,
    /// Length of a prompt that was asked for, in tokens.
    pub asked_prompt_tokens: u32,
    /// Number of these tokens that all prompts share.
    pub asked_shared_tokens: u32,
    /// Measure that set the length of a prompt: `/tokenize` or characters.
    pub measured_by: &'static str,
    /// Maximum length of an answer in tokens.
    pub asked_new_tokens: u32,
    /// Tokens of all prompts, as the server reports them. They include those of the chat template.
    pub prompt_tokens: u64,
    /// Those that were in the server's cache.
    pub cached_tokens: u64,
    /// Tokens of all answers.
    pub new_tokens: u64,
    /// Whether the server reports no number of tokens, so that `new_tokens` counts events with text.
    pub counts_events: bool,
    /// Prompt tokens per second of `wall_s`.
    pub prompt_tokens_per_s: f64,
    /// Tokens of answers per second of `wall_s`.
    pub new_tokens_per_s: f64,
    /// Answers per second of `wall_s`.
    pub answers_per_s: f64,
    /// Time from a request to the first text of its answer.
    pub first_token: Distribution,
    /// Average time per token of an answer after the first one.
    pub next_token: Distribution,
    /// Time from a request to the end of its answer.
    pub answer: Distribution,
}

/// Answers and errors so far.
#[derive(Default)]
pub(super) struct Outcomes {
    answers: Vec<Answer>,
    errors: BTreeMap<String, u64>,
}

impl Outcomes {
    pub(super) fn add(&mut self, outcome: Result<Answer, String>) {
        match outcome {
            Ok(answer) => self.answers.push(answer),
            Err(reason) => *self.errors.entry(reason).or_default() += 1,
        }
    }

    pub(super) fn report(
        self,
        load: &Load,
        model: &str,
        measured_by: &'static str,
        wall: Duration,
        is_interrupted: bool,
    ) -> LoadReport {
        let Self { answers, errors } = self;
        let sum = |of: fn(&Answer) -> Option<u64>| answers.iter().filter_map(of).sum::<u64>();
        let (prompt_tokens, new_tokens) = (sum(|a| a.prompt_tokens), sum(|a| Some(a.tokens())));
        let wall_s = wall.as_secs_f64();
        let per_s = |count: u64| if wall_s > 0.0 { count as f64 / wall_s } else { 0.0 };
        LoadReport {
            url: load.url.clone(),
            model: model.to_owned(),
            api: if load.is_completion { "completions" } else { "chat" },
            clients: load.rate_per_s.is_none().then_some(load.clients),
            rate_per_s: load.rate_per_s,
            requests: load.requests,
            answers: answers.len() as u64,
            errors,
            is_interrupted,
            wall_s,
            asked_prompt_tokens: load.prompt_tokens,
            asked_shared_tokens: load.shared_tokens,
            measured_by,
            asked_new_tokens: load.new_tokens,
            prompt_tokens,
            cached_tokens: sum(|a| a.cached_tokens),
            new_tokens,
            counts_events: answers.iter().any(|answer| answer.new_tokens.is_none()),
            prompt_tokens_per_s: per_s(prompt_tokens),
            new_tokens_per_s: per_s(new_tokens),
            answers_per_s: per_s(answers.len() as u64),
            first_token: Distribution::of(answers.iter().filter_map(|a| Some(a.first?.as_secs_f64()))),
            next_token: Distribution::of(answers.iter().filter_map(Answer::next_token_s)),
            answer: Distribution::of(answers.iter().map(|answer| answer.end.as_secs_f64())),
        }
    }
}

impl Answer {
    fn tokens(&self) -> u64 {
        self.new_tokens.unwrap_or(self.events)
    }

    /// Returns the average time per token after the first one, if there are two.
    fn next_token_s(&self) -> Option<f64> {
        let steps = self.tokens().checked_sub(1).filter(|steps| *steps > 0)?;
        Some(self.last.checked_sub(self.first?)?.as_secs_f64() / steps as f64)
    }
}

impl Distribution {
    fn of(times_s: impl Iterator<Item = f64>) -> Self {
        let mut sorted_s: Vec<f64> = times_s.collect();
        sorted_s.sort_unstable_by(f64::total_cmp);
        let Some(last) = sorted_s.len().checked_sub(1) else { return Self::default() };
        // The smallest time that is not below the share of times (nearest rank).
        let at = |percent: usize| sorted_s[((last + 1) * percent).div_ceil(100).saturating_sub(1)];
        let mean_s = sorted_s.iter().sum::<f64>() / sorted_s.len() as f64;
        Self { mean_s, p50_s: at(50), p90_s: at(90), p99_s: at(99), max_s: sorted_s[last] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let of = |n: u32| Distribution::of((1..=n).rev().map(f64::from));
        let hundred = of(100);
        assert_eq!((hundred.p50_s, hundred.p90_s, hundred.p99_s, hundred.max_s), (50.0, 90.0, 99.0, 100.0));
        assert_eq!((of(1).p50_s, of(1).p99_s, of(3).p50_s), (1.0, 1.0, 2.0));
        assert_eq!(of(0), Distribution::default());
    }

    #[test]
    fn the_time_per_token_leaves_the_first_token_out() {
        let second = Duration::from_secs(1);
        let answer =
            Answer { first: Some(second), last: 5 * second, new_tokens: Some(5), ..Answer::default() };
        assert_eq!(answer.next_token_s(), Some(1.0));
        assert_eq!(Answer { new_tokens: Some(1), ..answer.clone() }.next_token_s(), None);
        assert_eq!(Answer { first: None, ..answer }.next_token_s(), None);
    }
}
