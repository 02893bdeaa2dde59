//! Converts the scores of a SentencePiece vocabulary to a list of merges.
//!
//! SentencePiece repeatedly merges the leftmost adjacent pair whose joined text is the token with the highest
//! score. The `tokenizers` crate expects a list of pairs in descending rank, and merges the leftmost
//! occurrence of a pair. Therefore the list contains every split of every token into two tokens, sorted by
//! the scores of the split tokens.
//!
//! The order of the splits of *one* token matters only if two of these splits overlap in a text. This happens
//! for `x·m·y` if `x·m` and `m·y` are the same token. No such case is known. The tests search for one with
//! vocabularies designed to provoke it, and compare the tokens with those of a direct implementation.

use super::vocabulary::{Kind, Token};
use crate::error::Quoted;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, BpeBuilder};

/// Maximum length in bytes of a token that merges may produce. The work per token grows with the square of
/// this length.
pub(super) const LONGEST_TOKEN_BYTES: usize = 512;
/// Maximum average number of merges per token. Real vocabularies have two or three merges per token.
const MAX_MERGES_PER_TOKEN: usize = 32;

/// Returns the id of each token text that merges can use. Only [`Kind::Normal`] tokens take part in merges.
/// If several tokens have the same text, returns the id of the first one.
pub(super) fn ids_by_text<'a>(tokens: &[Token<'a>]) -> HashMap<&'a str, u32> {
    let mut ids = HashMap::new();
    for (id, token) in (0u32..).zip(tokens) {
        if token.kind == Kind::Normal && !token.text.is_empty() {
            ids.entry(token.text).or_insert(id);
        }
    }
    ids
}

/// Returns all merges as pairs of token texts, highest rank first.
pub(super) fn by_score(
    tokens: &[Token<'_>],
    ids: &HashMap<&str, u32>,
) -> Result<Vec<(String, String)>, String> {
    let mut order: Vec<&Token<'_>> = (0u32..)
        .zip(tokens)
        .filter(|(id, token)| ids.get(token.text) == Some(id))
        .map(|(_, token)| token)
        .collect();
    // The sort is stable, so the smaller id comes first for equal scores.
    order.sort_by(|a, b| b.score.partial_cmp(&a.score).expect("`vocabulary::token` rejects NaN"));

    let most = tokens.len().saturating_mul(MAX_MERGES_PER_TOKEN);
    let mut merges = Vec::new();
    for token in order {
        if token.text.len() > LONGEST_TOKEN_BYTES {
            return Err(format!(
                "has a token of {} bytes; at most {LONGEST_TOKEN_BYTES} are supported",
                token.text.len()
            ));
        }
        merges.extend(splits(token.text, ids).map(|(left, right)| (left.to_owned(), right.to_owned())));
        if merges.len() > most {
            return Err(format!("has more than {MAX_MERGES_PER_TOKEN} merges per token"));
        }
    }
    Ok(merges)
}

/// Returns the two tokens of a merge that a file stores as one text, separated by a space.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(format!("has the merge \"{}\", which is not two tokens", Quoted(text))),
    }
}

/// Builds the byte-pair encoding.
pub(super) fn build(builder: BpeBuilder) -> Result<BPE, String> {
    builder.build().map_err(|error| format!("has invalid merges: {}", Quoted(&error.to_string())))
}

/// Returns all ways to split `text` into two texts that both have ids.
fn splits<'a>(text: &'a str, ids: &HashMap<&str, u32>) -> impl Iterator<Item = (&'a str, &'a str)> {
    text.char_indices()
        .skip(1)
        .map(|(at, _)| text.split_at(at))
        .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
}
