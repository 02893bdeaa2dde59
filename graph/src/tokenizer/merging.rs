//! Byte-pair merging. Starts with the characters of a word, and merges two adjacent pieces as long as any merge
//! is possible. The merge with the best rank comes first. If several merges have this rank, the leftmost one
//! comes first.
//!
//! SentencePiece ranks the tokens: two pieces merge if their joined text is a token, best score first. Other
//! vocabularies list the merges. `tokenizers` has only the latter, and a list of all ways to build 262,144 tokens takes
//! ten times the memory and the time of this search by text.

use super::texts::Index;
use crate::error::{Quoted, TokenizerError};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Maximum length in bytes of a token. The work per token grows with this length.
pub(super) const LONGEST_TOKEN_BYTES: usize = 512;

/// A vocabulary with its merges.
#[derive(Clone, Debug)]
pub(super) struct Merging {
    /// Tokens that merging may produce.
    pub(super) index: Index,
    pub(super) order: Order,
    pub(super) fallback: Fallback,
    /// Whether a word that equals the text of a token becomes this token without any merging.
    pub(super) whole_words: bool,
}

/// Rule for which pieces merge, and in which order. A smaller rank comes first.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Rank of each token, by id. Two pieces merge if their joined text is a token.
    Tokens(Vec<u32>),
    /// Rank and result of each merge of two tokens.
    Pairs(HashMap<(u32, u32), (u32, u32)>),
}

/// Tokens of characters that the vocabulary lacks. A character becomes the tokens of its bytes, or the unknown
/// token if a byte has no token. Without an unknown token, it is dropped, as by the `tokenizers` library.
#[derive(Clone, Debug, Default)]
pub(super) struct Fallback {
    pub(super) bytes: HashMap<u8, u32>,
    pub(super) unknown: Option<u32>,
    /// Whether adjacent unknown characters become one unknown token.
    pub(super) fuse: bool,
}

impl Fallback {
    /// Returns the tokens of `character`, which is not a token, or `None` if it is unknown.
    fn bytes(&self, character: &str) -> Option<Vec<u32>> {
        character.bytes().map(|byte| self.bytes.get(&byte).copied()).collect()
    }
}

impl Order {
    /// Ranks tokens by their scores, which are numbers. The highest score comes first.
    pub(super) fn by_score(scores: impl Iterator<Item = f32>) -> Self {
        let rank = |score: f32| {
            // The sum turns -0 into 0. The bits of positive numbers grow with the number, those of negative ones fall.
            let bits = (score + 0.0).to_bits();
            if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
        };
        Order::Tokens(scores.map(rank).collect())
    }

    /// Ranks merges by their places in a list. Each merge consists of the texts of two tokens. An error completes
    /// the sentence "The vocabulary …".
    pub(super) fn by_list<'a>(
        index: &Index,
        merges: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        let mut pairs = HashMap::with_capacity(merges.len());
        let mut joined = String::new();
        for ((left, right), rank) in merges.zip(0..) {
            joined.clear();
            joined.extend([left, right]);
            let id = |text: &str| {
                index.find(text).ok_or_else(|| {
                    let (text, place) = (Quoted(text), rank + 1);
                    format!("has invalid merges: number {place} has \"{text}\", which is not a token")
                })
            };
            pairs.insert((id(left)?, id(right)?), (rank, id(&joined)?));
        }
        Ok(Order::Pairs(pairs))
    }
}

/// A piece of a word. Pieces form a list, because merges remove them.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u32,
    end: u32,
    before: u32,
    /// Next piece, or [`NONE`] also if the piece was merged into the piece before it.
    next: u32,
    /// Token, if the piece is one.
    id: Option<u32>,
}

const NONE: u32 = u32::MAX;

/// A merge that is possible: its rank, its left piece, its right piece, the end of its text, and its token.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

impl Merging {
    /// Appends the tokens of `word` to `ids`.
    pub(super) fn encode(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if let Some(id) = self.index.find(word).filter(|_| self.whole_words) {
            ids.push(id);
            return Ok(());
        }
        if word.len() >= NONE as usize {
            return Err(TokenizerError::Text { cause: "it has 4 GiB or more".into() });
        }
        let mut symbols = self.symbols(word);
        self.merge(word, &mut symbols);
        let mut is_unknown = false;
        let mut next = if symbols.is_empty() { NONE } else { 0 };
        while let Some(symbol) = symbols.get(next as usize) {
            next = symbol.next;
            let bytes = || self.fallback.bytes(&word[symbol.start as usize..symbol.end as usize]);
            let was_unknown = std::mem::take(&mut is_unknown);
            match (symbol.id, self.fallback.unknown) {
                (Some(id), _) => ids.push(id),
                (None, unknown) => match bytes() {
                    Some(bytes) => ids.extend(bytes),
                    None => {
                        is_unknown = true;
                        ids.extend(unknown.filter(|_| !(was_unknown && self.fallback.fuse)));
                    }
                },
            }
        }
        Ok(())
    }

    /// Returns the characters of `word`. In a vocabulary that lists merges, characters without a token and
    /// without anything that replaces them are dropped before merging, as by `tokenizers`, so their neighbours
    /// may merge.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let drops = matches!(self.order, Order::Pairs(_)) && self.fallback.unknown.is_none();
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        let mut at = 0;
        for text in word.split_inclusive(|_: char| true) {
            let (start, id) = (at, self.index.find(text));
            at += text.len() as u32;
            if id.is_none() && drops && self.fallback.bytes(text).is_none() {
                continue;
            }
            let number = symbols.len() as u32;
            if let Some(before) = symbols.last_mut() {
                before.next = number;
            }
            let before = number.checked_sub(1).unwrap_or(NONE);
            symbols.push(Symbol { start, end: at, before, next: NONE, id });
        }
        symbols
    }

    fn merge(&self, word: &str, symbols: &mut [Symbol]) {
        let last = (symbols.len() as u32).saturating_sub(1);
        let candidates = (0..last).filter_map(|left| self.candidate(word, symbols, left));
        let mut candidates: BinaryHeap<Candidate> = candidates.collect();
        while let Some(Reverse((_, left, right, end, id))) = candidates.pop() {
            let is_current = symbols[left as usize].next == right && symbols[right as usize].end == end;
            if !is_current {
                continue;
            }
            let next = std::mem::replace(&mut symbols[right as usize].next, NONE);
            let merged = &mut symbols[left as usize];
            (merged.end, merged.next, merged.id) = (end, next, Some(id));
            let before = merged.before;
            if let Some(next) = symbols.get_mut(next as usize) {
                next.before = left;
            }
            candidates.extend(self.candidate(word, symbols, left));
            candidates.extend(self.candidate(word, symbols, before));
        }
    }

    /// Returns the merge of the piece `left` with its next piece, if it is possible.
    fn candidate(&self, word: &str, symbols: &[Symbol], left: u32) -> Option<Candidate> {
        let first = symbols.get(left as usize)?;
        let right = symbols.get(first.next as usize)?;
        let (rank, id) = match &self.order {
            Order::Tokens(ranks) => {
                let id = self.index.find(&word[first.start as usize..right.end as usize])?;
                (*ranks.get(id as usize)?, id)
            }
            Order::Pairs(pairs) => *pairs.get(&(first.id?, right.id?))?,
        };
        Some(Reverse((rank, left, first.next, right.end, id)))
    }
}

/// Returns the two tokens of a merge that a file stores as one text, separated by a space.
pub(super) fn pair(text: &str) -> Result<(&str, &str), String> {
    text.split_once(' ').filter(|(_, right)| !right.contains(' ')).ok_or_else(|| {
        let text = Quoted(text);
        format!("has the merge \"{text}\", which is not two tokens")
    })
}

/// Returns an error if a token is too long. An error completes the sentence "The vocabulary …".
pub(super) fn check_lengths<'a>(mut texts: impl Iterator<Item = &'a str>) -> Result<(), String> {
    match texts.find(|text| text.len() > LONGEST_TOKEN_BYTES) {
        Some(text) => {
            Err(format!("has a token of {} bytes; at most {LONGEST_TOKEN_BYTES} are supported", text.len()))
        }
        None => Ok(()),
    }
}
