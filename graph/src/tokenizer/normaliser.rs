//! Normalises text before it is split into words. For example, replaces spaces with `▁` and prepends a `▁`.

use super::character_map::CharacterMap;
use super::vocabulary::SPACE;
use std::borrow::Cow;
use std::sync::Arc;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::{NormalizedString, Normalizer};

/// One change to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextChange {
    /// Collapses runs of spaces, and removes spaces at both ends.
    Squeeze,
    /// Replaces every occurrence of the first string with the second.
    Replace(String, String),
    /// Prepends a string, unless the text is empty.
    Prepend(String),
    /// Converts to Unicode NFC.
    Nfc,
    /// Converts to Unicode NFKC.
    Nfkc,
    /// Replaces characters as SentencePiece does.
    Map(Arc<CharacterMap>),
    /// Replaces characters as the `tokenizers` library does.
    MapByCluster(Arc<CharacterMap>),
    /// Removes whitespace at the start, at the end, or at both.
    Strip { left: bool, right: bool },
    /// Replaces every run of at least two spaces.
    Runs(String),
    /// Converts to lower case without accents, and removes control characters, as for BERT.
    Bert,
}

/// Sequence of changes that normalise a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Normaliser {
    pub(super) steps: Vec<TextChange>,
    /// Whether only the start of the input gets a prefix, and not the rests between special tokens.
    pub(super) prefix_once: bool,
}

impl Normaliser {
    /// Builds SentencePiece's normaliser, which replaces spaces with `▁`. Before that, it applies `map`, and
    /// collapses runs of spaces if `squeeze` is set. If `prefix` is set, it also prepends a `▁`.
    pub(super) fn visible_spaces(map: Option<CharacterMap>, squeeze: bool, prefix: bool) -> Self {
        let mut steps = Vec::new();
        steps.extend(map.map(|map| TextChange::Map(Arc::new(map))));
        steps.extend(squeeze.then_some(TextChange::Squeeze));
        steps.push(TextChange::Replace(" ".to_owned(), SPACE.to_string()));
        steps.extend(prefix.then(|| TextChange::Prepend(SPACE.to_string())));
        Normaliser { steps, prefix_once: false }
    }

    /// Returns the normalised text. `at_start` states whether `text` is the start of the input.
    pub(super) fn apply<'a>(&self, text: &'a str, at_start: bool) -> Cow<'a, str> {
        self.steps.iter().fold(Cow::Borrowed(text), |text, step| match step {
            _ if text.is_empty() => text,
            TextChange::Squeeze => {
                text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ").into()
            }
            TextChange::Replace(from, to) => text.replace(from, to).into(),
            TextChange::Prepend(_) if self.prefix_once && !at_start => text,
            TextChange::Prepend(prefix) => format!("{prefix}{text}").into(),
            TextChange::Nfc => NormalizedString::from(text.as_ref()).nfc().get().to_owned().into(),
            TextChange::Nfkc => NormalizedString::from(text.as_ref()).nfkc().get().to_owned().into(),
            TextChange::Map(map) => map.apply(&text).into(),
            TextChange::MapByCluster(map) => map.apply_by_cluster(&text).into(),
            TextChange::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { &text };
                if *right { text.trim_end() } else { text }.to_owned().into()
            }
            TextChange::Runs(to) => without_runs(&text, to).into(),
            TextChange::Bert => {
                let mut changed = NormalizedString::from(text.as_ref());
                match BertNormalizer::new(true, true, Some(true), true).normalize(&mut changed) {
                    Ok(()) => changed.get().to_owned().into(),
                    Err(_) => text,
                }
            }
        })
    }
}

/// Replaces every run of at least two spaces in `text` with `to`.
fn without_runs(text: &str, to: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("  ") {
        out.push_str(&rest[..at]);
        out.push_str(to);
        rest = rest[at..].trim_start_matches(' ');
    }
    out.push_str(rest);
    out
}
