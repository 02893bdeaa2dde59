//! Tokens that stand in a text as they are, found before anything is merged.

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, MatchKind};

/// Finds the tokens of a set in a text: the leftmost first, of several the longest.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    /// `None` for the empty set.
    matcher: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text without any of the tokens.
    Text(&'a str),
    /// One of the tokens.
    Token(u32),
}

impl Finder {
    /// A finder of these texts and their ids. Empty texts are never found.
    pub(super) fn new(tokens: impl Iterator<Item = (u32, String)>) -> Result<Self, BuildError> {
        let (ids, texts): (Vec<u32>, Vec<String>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        let matcher = (!texts.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    // A vocabulary may bring long texts; this kind stays close to their size.
                    .kind(Some(AhoCorasickKind::ContiguousNFA))
                    .build(texts)
            })
            .transpose()?;
        Ok(Finder { matcher, ids })
    }

    /// Cuts `text` into parts, none of them empty.
    pub(super) fn parts<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut rest = 0;
        for found in self.matcher.iter().flat_map(|matcher| matcher.find_iter(text)) {
            if let Some(before) = text.get(rest..found.start()).filter(|t| !t.is_empty()) {
                parts.push(Part::Text(before));
            }
            parts.extend(self.ids.get(found.pattern().as_usize()).map(|id| Part::Token(*id)));
            rest = found.end();
        }
        if let Some(after) = text.get(rest..).filter(|t| !t.is_empty()) {
            parts.push(Part::Text(after));
        }
        parts
    }
}
