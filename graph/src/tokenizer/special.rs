//! Finds special tokens that occur literally in a text.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use fancy_regex::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// A special token to search for.
#[derive(Clone, Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    /// Text of the token. An empty text never matches.
    pub(super) text: String,
    /// Whether the token is a control token, which is recognized only in trusted text.
    pub(super) control: bool,
    /// Whether a match includes the whitespace before the token.
    pub(super) strips_left: bool,
    /// Whether a match includes the whitespace after the token.
    pub(super) strips_right: bool,
    /// Whether the token matches only between characters that are not part of words.
    pub(super) single_word: bool,
}

impl Added {
    /// Creates a token whose matches do not include the surrounding whitespace.
    pub(super) fn new(id: u32, text: impl Into<String>, control: bool) -> Self {
        Added { id, text: text.into(), control, strips_left: false, strips_right: false, single_word: false }
    }
}

/// Part of a text that was split at its special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPart<'a> {
    /// Text that contains no special token.
    Text(&'a str),
    /// Occurrence of the special token with this id.
    Token(u32),
}

/// Finder that splits texts at special tokens. It searches for all special tokens, or only for those that are
/// not control tokens.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    plain: Set,
    all: Set,
}

impl Finder {
    /// Creates a finder that searches for `tokens`. An error completes the sentence "The vocabulary …".
    pub(super) fn new(tokens: Vec<Added>) -> Result<Self, String> {
        let plain = tokens.iter().filter(|token| !token.control).cloned().collect();
        Ok(Finder { plain: Set::new(plain)?, all: Set::new(tokens)? })
    }

    /// Splits `text` into non-empty parts. Searches for control tokens only if `control` is true.
    pub(super) fn parts<'a>(&self, text: &'a str, control: bool) -> Vec<TextPart<'a>> {
        if control { self.all.parts(text) } else { self.plain.parts(text) }
    }

    /// Returns the texts of the control tokens.
    pub(super) fn control(&self) -> impl Iterator<Item = &str> {
        self.all.tokens.iter().filter(|token| token.control).map(|token| token.text.as_str())
    }

    /// Returns the position after the first character of each control token in `text`, and of each beginning of a
    /// control token at the end of `text`. Control tokens may overlap.
    pub(super) fn control_places(&self, text: &str) -> BTreeSet<usize> {
        let firsts: BTreeSet<char> = self.control().filter_map(|token| token.chars().next()).collect();
        let longest = self.control().map(str::len).max().unwrap_or_default();
        let is_control = |rest: &str, at: usize| {
            let token = self.all.matcher.find(Input::new(rest).anchored(Anchored::Yes));
            token.is_some_and(|found| self.all.tokens[found.pattern().as_usize()].control)
                || text.len() - at < longest && self.control().any(|token| token.starts_with(rest))
        };
        let starts = text.char_indices().filter(|(_, first)| firsts.contains(first));
        starts
            .filter(|(at, _)| is_control(&text[*at..], *at))
            .map(|(at, first)| at + first.len_utf8())
            .collect()
    }
}

/// A set of tokens to search for. The leftmost match wins. If several tokens match at the same position, the
/// longest token wins.
#[derive(Clone, Debug)]
struct Set {
    /// Matcher for the token texts.
    matcher: AhoCorasick,
    tokens: Vec<Added>,
}

impl Set {
    fn new(mut tokens: Vec<Added>) -> Result<Self, String> {
        tokens.retain(|token| !token.text.is_empty());
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // The memory of a contiguous NFA stays close to the total size of the texts, even if they are long.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .start_kind(StartKind::Both)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| format!("has special tokens that cannot be searched for: {error}"))?;
        Ok(Set { matcher, tokens })
    }

    fn parts<'a>(&self, text: &'a str) -> Vec<TextPart<'a>> {
        let mut parts = Vec::new();
        let mut rest = 0;
        for found in self.matcher.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            if token.single_word && is_within_word(text, found.start(), found.end()) {
                continue;
            }
            // The previous match may include this whitespace token. In that case, there is no text before it.
            let mut before = text.get(rest..found.start()).unwrap_or("");
            if token.strips_left {
                before = before.trim_end();
            }
            parts.extend((!before.is_empty()).then_some(TextPart::Text(before)));
            parts.push(TextPart::Token(token.id));
            rest = found.end().max(rest);
            if token.strips_right {
                let after = text.get(rest..).unwrap_or_default();
                rest += after.len() - after.trim_start().len();
            }
        }
        let after = text.get(rest..).unwrap_or_default();
        parts.extend((!after.is_empty()).then_some(TextPart::Text(after)));
        parts
    }
}

/// Returns whether a character of a word comes before `start` or is at `end`, as the `tokenizers` library decides.
fn is_within_word(text: &str, start: usize, end: usize) -> bool {
    static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\w").expect("this expression is valid"));
    let neighbours = [text[..start].chars().next_back(), text[end..].chars().next()];
    neighbours.into_iter().flatten().any(|c| WORD.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_consume_adjacent_whitespace() {
        let left = Added { strips_left: true, ..Added::new(1, "<l>", false) };
        let right = Added { strips_right: true, ..Added::new(2, "<r>", false) };
        let space = Added::new(3, "  ", false);
        let finder = Finder::new(vec![left, right, space, Added::new(4, "<c>", true)]).unwrap();
        let parts = |text| finder.parts(text, true);
        assert_eq!(parts("a <l> b"), [TextPart::Text("a"), TextPart::Token(1), TextPart::Text(" b")]);
        assert_eq!(parts("a <r> b"), [TextPart::Text("a "), TextPart::Token(2), TextPart::Text("b")]);
        // The match of `<r>` already includes the token for two spaces.
        assert_eq!(parts("<r>   b"), [TextPart::Token(2), TextPart::Token(3), TextPart::Text("b")]);
        assert_eq!(parts("<r> <l>"), [TextPart::Token(2), TextPart::Token(1)]);
        assert_eq!(parts("<c>"), [TextPart::Token(4)]);
        assert_eq!(finder.parts("<c>", false), [TextPart::Text("<c>")]);
        assert_eq!(parts(""), []);
    }
}
