//! What happens to a text before anything is looked for in it: spaces become visible, one is put before it.

use super::vocabulary::SPACE;
use std::borrow::Cow;
use tokenizers::NormalizedString;

/// One change of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextChange {
    /// Runs of spaces become one, those at both ends go.
    Squeeze,
    /// Every occurrence of a text becomes another.
    Replace(String, String),
    /// A text is put before, unless there is nothing to put it before.
    Prepend(String),
    /// Unicode's composed form.
    Nfc,
}

/// The changes, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Normaliser {
    pub(super) steps: Vec<TextChange>,
}

impl Normaliser {
    /// SentencePiece's: spaces become `▁`.
    pub(super) fn visible_spaces(squeeze: bool, prefix: bool) -> Self {
        let mut steps = Vec::new();
        steps.extend(squeeze.then_some(TextChange::Squeeze));
        steps.push(TextChange::Replace(" ".to_owned(), SPACE.to_string()));
        steps.extend(prefix.then(|| TextChange::Prepend(SPACE.to_string())));
        Normaliser { steps }
    }

    /// The text, changed.
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
