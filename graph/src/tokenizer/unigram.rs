//! Unigram vocabularies: a text becomes the tokens whose scores have the largest sum.

use super::merging;
use crate::error::TokenizerError;
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum length in bytes of all tokens together. The matcher takes some tens of bytes per byte.
const MAX_BYTES: usize = 16 << 20;
/// Distance of an unknown character's score below the lowest score, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A Unigram vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Unigram {
    matcher: AhoCorasick,
    /// Id and score of each pattern of `matcher`.
    tokens: Arc<[(u32, f64)]>,
    /// Ids of the byte tokens, which replace unknown characters.
    bytes: HashMap<u8, u32>,
    unknown: Option<u32>,
    unknown_score: f64,
}

/// The best way to split a text up to some position: its score, and its last token. The last token is `None`
/// for an unknown character.
#[derive(Clone, Copy)]
struct Step {
    score: f64,
    start: usize,
    token: Option<u32>,
}

impl Unigram {
    /// Builds the vocabulary. `tokens` contains the text, the id and the score of each token that encoding
    /// may produce. `lowest` is the lowest score. `bytes` contains the tokens of single bytes.
    pub(super) fn new(
        tokens: &[(&str, u32, f64)],
        lowest: f64,
        bytes: HashMap<u8, u32>,
        unknown: Option<u32>,
    ) -> Result<Self, String> {
        if unknown.is_none() && bytes.len() < 256 {
            return Err("has neither all byte tokens nor an unknown token".into());
        }
        merging::check_lengths(tokens.iter().map(|(text, ..)| *text))?;
        if tokens.iter().map(|(text, ..)| text.len()).sum::<usize>() > MAX_BYTES {
            return Err(format!("has tokens with more than {MAX_BYTES} bytes in all"));
        }
        // Several tokens may have the same text. The last one counts, as in the `tokenizers` library.
        let by_text: HashMap<&str, (u32, f64)> = tokens
            .iter()
            .filter(|token| !token.0.is_empty())
            .map(|(text, id, score)| (*text, (*id, *score)))
            .collect();
        let (texts, tokens): (Vec<&str>, Vec<(u32, f64)>) = by_text.into_iter().unzip();
        let matcher = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
            .map_err(|error| format!("has tokens that cannot be searched for: {error}"))?;
        let unknown_score = lowest - UNKNOWN_PENALTY;
        Ok(Unigram { matcher, tokens: tokens.into(), bytes, unknown, unknown_score })
    }

    /// Appends the token ids of `text` to `ids`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let steps = self.steps(text);
        let (mut parts, mut end) = (Vec::new(), text.len());
        while end > 0 {
            let step = steps[end].expect("a step leads to each end of a character");
            parts.push((step.token, step.start, end));
            end = step.start;
        }
        parts.reverse();
        // Adjacent unknown characters become one unknown token.
        for run in parts.chunk_by(|a, b| a.0.is_none() && b.0.is_none()) {
            match run {
                [(Some(id), ..)] => ids.push(*id),
                [(None, start, _), ..] => {
                    let end = run[run.len() - 1].2;
                    self.encode_unknown(&text[*start..end], ids)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the best step to each end of a character. Every start of a step comes before its end.
    fn steps(&self, text: &str) -> Vec<Option<Step>> {
        let mut steps: Vec<Option<Step>> = vec![None; text.len() + 1];
        // The matches come in the order of their ends, those with the same end in the order of their starts.
        let mut matches = self.matcher.find_overlapping_iter(text).peekable();
        for (at, character) in text.char_indices() {
            let end = at + character.len_utf8();
            let mut best: Option<Step> = None;
            let mut offer = |start: usize, score: f64, token: Option<u32>| {
                let score = score + steps[start].map_or(0.0, |before| before.score);
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Step { score, start, token });
                }
            };
            let mut is_known = false;
            while let Some(found) = matches.next_if(|found| found.end() <= end) {
                let (id, score) = self.tokens[found.pattern().as_usize()];
                is_known |= found.start() == at;
                offer(found.start(), score, Some(id));
            }
            if !is_known {
                offer(at, self.unknown_score, None);
            }
            steps[end] = best;
        }
        steps
    }

    /// Appends the tokens of the bytes of `text`, or the unknown token if a byte has no token.
    fn encode_unknown(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let bytes: Option<Vec<u32>> = text.bytes().map(|byte| self.bytes.get(&byte).copied()).collect();
        match (bytes, self.unknown) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unknown)) => ids.push(unknown),
            (None, None) => {
                return Err(TokenizerError::Text { cause: "a byte has no token".into() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unigram(tokens: &[(&str, u32, f64)]) -> Unigram {
        Unigram::new(tokens, -5.0, HashMap::new(), Some(0)).unwrap()
    }

    fn ids(unigram: &Unigram, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        unigram.encode(text, &mut ids).unwrap();
        ids
    }

    #[test]
    fn the_largest_sum_of_scores_wins() {
        let u = unigram(&[("a", 1, -1.0), ("b", 2, -1.0), ("ab", 3, -1.5), ("bc", 4, -0.4), ("c", 5, -3.0)]);
        assert_eq!(ids(&u, "ab"), [3]);
        assert_eq!(ids(&u, "abc"), [1, 4]);
        assert_eq!(ids(&u, "axxyb€b"), [1, 0, 2, 0, 2], "unknown characters join");
        assert_eq!(ids(&u, ""), [0u32; 0]);
    }

    #[test]
    fn bytes_replace_unknown_characters() {
        let bytes = (0..=255).map(|byte| (byte, 1000 + u32::from(byte))).collect();
        let u = Unigram::new(&[("a", 1, -1.0)], -1.0, bytes, None).unwrap();
        assert_eq!(
            ids(&u, "é€a"),
            [0xC3, 0xA9, 0xE2, 0x82, 0xAC].map(|byte| 1000 + byte).into_iter().chain([1]).collect::<Vec<_>>()
        );
        let some = Unigram::new(&[("a", 1, -1.0)], -1.0, [(b'x', 7)].into(), Some(0)).unwrap();
        assert_eq!(ids(&some, "xxaxy"), [7, 7, 1, 0]);
    }

    #[test]
    fn rejects_vocabularies_that_cannot_work() {
        let fails = |tokens: &[(&str, u32, f64)], unknown| {
            Unigram::new(tokens, 0.0, HashMap::new(), unknown).unwrap_err()
        };
        assert!(fails(&[], None).contains("neither all byte tokens nor an unknown token"));
        let long = "x".repeat(513);
        assert!(fails(&[(&long, 0, 0.0)], Some(0)).contains("a token of 513 bytes"));
        let many: Vec<String> = (0..40_000).map(|n| format!("{n:0512}")).collect();
        let many: Vec<_> = many.iter().map(|text| (text.as_str(), 0, 0.0)).collect();
        assert!(fails(&many, Some(0)).contains("more than 16777216 bytes"));
        // An empty token would never advance, and infinite scores have no sum.
        let odd =
            unigram(&[("", 1, 9.0), ("a", 2, f64::INFINITY), ("b", 3, f64::NEG_INFINITY), ("ab", 4, 0.0)]);
        assert!(ids(&odd, "abab").iter().all(|id| [2, 3, 4].contains(id)));
    }

    /// Returns the score and the ids of every split.
    fn splits(text: &str, tokens: &[(&str, u32, f64)]) -> Vec<(f64, Vec<u32>)> {
        let Some(first) = text.chars().next() else { return vec![(0.0, Vec::new())] };
        let mut starts: Vec<(usize, u32, f64)> = tokens
            .iter()
            .filter(|token| text.starts_with(token.0))
            .map(|token| (token.0.len(), token.1, token.2))
            .collect();
        if starts.iter().all(|start| start.0 != first.len_utf8()) {
            starts.push((first.len_utf8(), 0, -15.0));
        }
        let with_rest = |(bytes, id, score): (usize, u32, f64)| {
            let rest = splits(&text[bytes..], tokens).into_iter();
            rest.map(move |(after, ids)| (score + after, [vec![id], ids].concat()))
        };
        starts.into_iter().flat_map(with_rest).collect()
    }

    const TEXTS: [&str; 10] = ["a", "b", "ab", "ba", "aa", "aab", "abab", "é", "aé", "éb"];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_gets_the_best_split(
            chosen in proptest::sample::subsequence(TEXTS.to_vec(), 0..10),
            text in "[abé€]{0,9}",
        ) {
            // Splits into the same pieces in another order have equal scores. No sum of square roots of primes
            // equals another one, so all other scores differ.
            let score = |id: u32| -[2.0f64, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0][id as usize].sqrt();
            let tokens: Vec<_> = (1..).zip(&chosen).map(|(id, text)| (*text, id, score(id))).collect();
            let mut splits = splits(&text, &tokens);
            let most = splits.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
            splits.retain(|(score, _)| *score > most - 1e-9);
            splits.iter_mut().for_each(|(_, ids)| ids.dedup_by(|a, b| *a == 0 && *b == 0));
            let found = ids(&unigram(&tokens), &text);
            prop_assert!(splits.iter().any(|(_, ids)| *ids == found), "{found:?} is not among {splits:?}");
        }
    }
}
