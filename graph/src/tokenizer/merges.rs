//! Converts scores to merges.
//!
//! SentencePiece repeatedly merges the adjacent pair whose joined text is the token with the highest score,
//! the leftmost such pair first. `tokenizers` expects a list of pairs by descending rank, and merges the
//! leftmost occurrence of a pair. So every token contributes all its splits into two tokens, in the order of
//! the tokens' scores.
//!
//! The order among the splits of *one* token would matter only where two of them overlap in a text, as in
//! `x·m·y` where `x·m` and `m·y` are the same token. Leftmost merging by score does not seem to leave such
//! neighbours behind. The tests search for them with vocabularies designed to provoke them, and compare with
//! a direct implementation of the rule.

use super::vocabulary::{Kind, Token};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Limit of a token that merges may produce, in bytes. The work per token grows with the square of its
/// length.
pub(super) const LONGEST_TOKEN_BYTES: usize = 512;
/// Limit of merges per token, on average. Real vocabularies have two or three.
const MOST_MERGES_PER_TOKEN: usize = 32;

/// Returns the ids of texts that merges produce or join: for all [`Kind::Normal`] tokens, the first id of
/// each text.
pub(super) fn ids_by_text<'a>(tokens: &[Token<'a>]) -> HashMap<&'a str, u32> {
    let mut ids = HashMap::new();
    for (id, token) in (0u32..).zip(tokens) {
        if token.kind == Kind::Normal && !token.text.is_empty() {
            ids.entry(token.text).or_insert(id);
        }
    }
    ids
}

/// Returns all merges, highest rank first.
pub(super) fn by_score(
    tokens: &[Token<'_>],
    ids: &HashMap<&str, u32>,
) -> Result<Vec<(String, String)>, String> {
    let mut order: Vec<&Token<'_>> = (0u32..)
        .zip(tokens)
        .filter(|(id, token)| ids.get(token.text) == Some(id))
        .map(|(_, token)| token)
        .collect();
    // The sort is stable: for equal scores, the smaller id comes first. (No score is NaN.)
    order.sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal));

    let most = tokens.len().saturating_mul(MOST_MERGES_PER_TOKEN);
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
            return Err(format!("has more than {MOST_MERGES_PER_TOKEN} merges per token"));
        }
    }
    Ok(merges)
}

/// Returns the splits of a text into two known texts.
fn splits<'a>(text: &'a str, ids: &HashMap<&str, u32>) -> impl Iterator<Item = (&'a str, &'a str)> {
    text.char_indices()
        .skip(1)
        .map(|(at, _)| text.split_at(at))
        .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
}
