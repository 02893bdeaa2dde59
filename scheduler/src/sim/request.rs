//! Simulated requests, and the tokens of their sequences.
//!
//! A generated token depends on all tokens before it, and so does the content of a position in the cache. A
//! sequence that goes on with wrong keys and values, or with a wrong history, therefore gets wrong tokens.

use crate::core::{Nanoseconds, Priority, RunShape, Want};
use ragtag_kernels::params::BLOCK_TOKENS;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// A simulated request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimRequest {
    /// Arrival time.
    pub at_ns: Nanoseconds,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of tokens, from the first on, that the prompt has in common with other prompts of its family.
    pub shared_tokens: u32,
    /// The family.
    pub family: u64,
    /// Whether the sequence may use prefixes in the cache, and leaves its own there.
    pub shares_prefix: bool,
    /// Output that the request asks for.
    pub want: Want,
    /// Whether tokens are sampled from whole rows of logits.
    pub whole_rows: bool,
    /// Number of new tokens after which the stop rule matches, if there is one.
    pub stops: Option<u32>,
    /// Priority among the waiting requests.
    pub priority: Priority,
    /// Time at which the sequence ends, if any.
    pub deadline_ns: Option<Nanoseconds>,
    /// Time from which the reader is behind, if any.
    pub pause_ns: Option<Nanoseconds>,
    /// Time at which the reader has caught up. A request that is paused and not resumed must be cancelled.
    pub resume_ns: Option<Nanoseconds>,
    /// Time of cancellation, if any.
    pub cancel_ns: Option<Nanoseconds>,
}

/// Hash of the tokens of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) const EMPTY: Self = Self(0x5261_6774_6167);

    /// Returns the hash of a prefix of one more token.
    pub(super) fn then(self, token: u32) -> Self {
        Self(mixed(self.0 ^ u64::from(token)))
    }

    /// Returns the token that follows the prefix.
    pub(super) fn next_token(self, vocabulary: u32) -> u32 {
        (self.0 % u64::from(vocabulary)) as u32
    }
}

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ number >> 32
}

impl SimRequest {
    /// Creates a request with a prompt of its own and without a deadline.
    pub fn new(at_ns: Nanoseconds, prompt_tokens: u32, want: Want) -> Self {
        Self {
            at_ns,
            prompt_tokens,
            shared_tokens: 0,
            family: 0,
            shares_prefix: true,
            want,
            whole_rows: false,
            stops: None,
            priority: Priority::Normal,
            deadline_ns: None,
            pause_ns: None,
            resume_ns: None,
            cancel_ns: None,
        }
    }

    /// Returns the prompt of the request, which has the number `sequence`. Its shared tokens are those that a sequence
    /// generates after the first one, so they may be the prompt and the answer of another request.
    pub fn prompt(&self, sequence: u64, vocabulary: u32) -> impl Iterator<Item = u32> {
        let drawn = move |owner: u64, position: u32| {
            (mixed(owner << 32 | u64::from(position)) % u64::from(vocabulary)) as u32
        };
        (0..self.prompt_tokens).scan(Prefix::EMPTY, move |prefix, position| {
            let token = match position < self.shared_tokens {
                true if position == 0 => drawn(self.family << 1, 0),
                true => prefix.next_token(vocabulary),
                false => drawn(sequence << 1 | 1, position),
            };
            *prefix = prefix.then(token);
            Some(token)
        })
    }

    /// Returns the prompt, followed by all tokens that the sequence would generate in the context.
    pub(super) fn text(&self, sequence: u64, run: &RunShape) -> Vec<u32> {
        let mut tokens: Vec<_> = self.prompt(sequence, run.vocabulary).collect();
        let mut prefix = tokens.iter().fold(Prefix::EMPTY, |prefix, &token| prefix.then(token));
        let Want::Generate { max_new_tokens, .. } = self.want else { return tokens };
        for _ in 0..max_new_tokens.min((run.context + 1).saturating_sub(self.prompt_tokens)) {
            let token = prefix.next_token(run.vocabulary);
            tokens.push(token);
            prefix = prefix.then(token);
        }
        tokens
    }

    /// Returns whether the sequence may go on after a prefix in the cache.
    pub(super) fn reuses(&self, run: &RunShape) -> bool {
        self.shares_prefix && run.kv_use.prefixes.is_some() && self.want != Want::Logits
    }
}

/// Returns up to twelve random requests.
pub(super) fn random_requests(rng: &mut SmallRng, run: &RunShape, seed: u64) -> Vec<SimRequest> {
    let mut lives = SmallRng::seed_from_u64(seed ^ 0x6c69_7665);
    let mut rows = SmallRng::seed_from_u64(seed ^ 0x726f_7773);
    let mut requests: Vec<_> = (0..rng.random_range(1..=12)).map(|_| random_request(rng, run)).collect();
    let families = lives.random_range(1..=2);
    for request in &mut requests {
        // Some requests arrive when others have ended, and some take many blocks.
        let late_ns = if lives.random_ratio(1, 2) { lives.random_range(0..10_000_000) } else { 0 };
        request.at_ns += late_ns;
        request.cancel_ns = request.cancel_ns.map(|cancel_ns| cancel_ns + late_ns);
        if let Want::Generate { max_new_tokens, .. } = &mut request.want
            && lives.random_ratio(1, 3)
        {
            *max_new_tokens += lives.random_range(0..80);
        }
        request.family = lives.random_range(0..families);
        // Prompts of a family have these tokens in common, or one is the beginning of the other.
        request.shared_tokens = lives.random_range(0..=2 * run.context);
        request.shares_prefix = lives.random_ratio(7, 8);
        request.priority =
            [Priority::High, Priority::Normal, Priority::Normal, Priority::Low][lives.random_range(0..4)];
        request.whole_rows = rows.random_ratio(1, 3);
        request.stops = lives.random_ratio(1, 6).then(|| lives.random_range(1..=20));
        let after_ns = |from_ns, lives: &mut SmallRng| from_ns + lives.random_range(0..8_000_000);
        request.deadline_ns = lives.random_ratio(1, 6).then(|| after_ns(request.at_ns, &mut lives));
        if lives.random_ratio(1, 4) {
            let pause_ns = after_ns(request.at_ns, &mut lives);
            request.pause_ns = Some(pause_ns);
            let end = if lives.random_ratio(3, 4) { &mut request.resume_ns } else { &mut request.cancel_ns };
            *end = Some(after_ns(pause_ns, &mut lives));
        }
    }
    requests
}

fn random_request(rng: &mut SmallRng, run: &RunShape) -> SimRequest {
    // Some requests exceed the context or the cache. The pipeline must refuse them.
    let cache = run.kv_blocks * BLOCK_TOKENS as u32;
    let prompt_tokens = rng.random_range(0..=run.context.min(cache) + 2);
    let end_tokens = (0..rng.random_range(0..3)).map(|_| rng.random_range(0..run.vocabulary)).collect();
    let want = if rng.random_ratio(1, 5) {
        Want::Logits
    } else {
        Want::Generate { max_new_tokens: rng.random_range(0..40), end_tokens }
    };
    let at_ns = rng.random_range(0..2_000_000);
    let cancel_ns = rng.random_ratio(1, 5).then(|| at_ns + rng.random_range(0..2_000_000));
    SimRequest { cancel_ns, ..SimRequest::new(at_ns, prompt_tokens, want) }
}
