//! Prompts of a load: random words of a length in tokens, after words that all prompts share.

use super::Load;

/// Words of the prompts. Most tokenizers have them as one token.
const WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "night", "point", "home", "water",
];

/// Number of characters of a token, if the server has no `/tokenize`.
const CHARACTERS: f64 = 4.0;
/// Number of words that are tokenized to measure their length.
const SAMPLE_WORDS: usize = 256;

/// Makes the prompts of a load.
pub(super) struct Prompts {
    seed: u64,
    shared: String,
    own_words: usize,
    is_tokenized: bool,
}

impl Prompts {
    /// Creates prompts. `words_per_token` is what the server's `/tokenize` says, if it has one.
    pub(super) fn new(load: &Load, words_per_token: Option<f64>) -> Self {
        let characters: usize = WORDS.iter().map(|word| word.len() + 1).sum();
        let assumed = CHARACTERS * WORDS.len() as f64 / characters as f64;
        let ratio = words_per_token.unwrap_or(assumed);
        let words_of = |tokens: u32| (f64::from(tokens) * ratio).round() as usize;
        let shared_tokens = load.shared_tokens.min(load.prompt_tokens);
        Self {
            seed: load.seed,
            shared: words(load.seed, words_of(shared_tokens)),
            own_words: words_of(load.prompt_tokens - shared_tokens),
            is_tokenized: words_per_token.is_some(),
        }
    }

    /// Returns how the length of a prompt is set.
    pub(super) fn measured_by(&self) -> &'static str {
        if self.is_tokenized { "/tokenize" } else { "4 characters per token" }
    }

    /// Returns the prompt of request `number`.
    pub(super) fn prompt(&self, number: u32) -> String {
        let own = words(random(self.seed ^ u64::from(number) << 16), self.own_words);
        [self.shared.as_str(), own.as_str()].join(" ").trim().to_owned()
    }
}

/// Returns a text whose tokens tell the length of words in tokens.
pub(super) fn sample(seed: u64) -> (String, usize) {
    (words(seed, SAMPLE_WORDS), SAMPLE_WORDS)
}

fn words(seed: u64, count: usize) -> String {
    let word = |n: usize| WORDS[(random(seed ^ n as u64) % WORDS.len() as u64) as usize];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

/// Returns a random number that belongs to `seed` (the mixing function of SplitMix64).
pub(super) fn random(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn prompts_share_their_begin_and_have_the_length() {
        let load = Load {
            url: String::new(),
            key: None,
            certificates: None,
            model: None,
            is_completion: false,
            clients: 1,
            rate_per_s: None,
            requests: 2,
            prompt_tokens: 100,
            shared_tokens: 40,
            new_tokens: 1,
            fields: serde_json::Map::new(),
            timeout: Duration::ZERO,
            seed: 7,
        };
        let prompts = Prompts::new(&load, Some(1.0));
        let [first, second] = [prompts.prompt(0), prompts.prompt(1)];
        let [a, b]: [Vec<_>; 2] = [&first, &second].map(|text| text.split(' ').collect());
        assert_eq!((a.len(), b.len()), (100, 100));
        assert_eq!(a[..40], b[..40]);
        assert_ne!(a[40..], b[40..]);
        assert_eq!(prompts.prompt(0), first);
        let assumed = Prompts::new(&load, None).prompt(0).len();
        assert!((320..480).contains(&assumed), "{assumed} characters");
    }
}
