//! Normalises text before it is split into words. For example, replaces spaces with `▁` and prepends a `▁`.

use super::vocabulary::SPACE;
use std::borrow::Cow;
use tokenizers::NormalizedString;

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
}

/// Sequence of changes that normalise a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Normaliser {
    pub(super) steps: Vec<TextChange>,
}

impl Normaliser {
    /// Builds SentencePiece's normaliser, which replaces spaces with `▁`. If `squeeze` is set, it first
    /// collapses runs of spaces. If `prefix` is set, it also prepends a `▁`.
    pub(super) fn visible_spaces(squeeze: bool, prefix: bool) -> Self {
        let mut steps = Vec::new();
        steps.extend(squeeze.then_some(TextChange::Squeeze));
        steps.push(TextChange::Replace(" ".to_owned(), SPACE.to_string()));
        steps.extend(prefix.then(|| TextChange::Prepend(SPACE.to_string())));
        Normaliser { steps }
    }

    /// Returns the normalised text.
    pub(super) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.steps.iter().fold(Cow::Borrowed(text), |text, step| match step {
            _ if text.is_empty() => text,
            TextChange::Squeeze => {
                text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ").into()
            }
            TextChange::Replace(from, to) => text.replace(from, to).into(),
            TextChange::Prepend(prefix) => format!("{prefix}{text}").into(),
            TextChange::Nfc => NormalizedString::from(text.as_ref()).nfc().get().to_owned().into(),
        })
    }
}
