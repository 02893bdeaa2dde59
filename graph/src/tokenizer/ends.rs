//! Tokens that begin and end a text. Tokens that end a turn are found by their texts, because many model files
//! name only the token that ends a text, or none, so generation would not stop at the end of a turn.

use std::collections::BTreeSet;

/// Texts of control tokens that end a text, a turn or a message.
const ENDS: [&str; 14] = [
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofturn|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// Text of a token that ends a turn in most vocabularies.
const END: &str = "<|end|>";
/// Text of a token that ends a turn. In a vocabulary with this token, [`END`] ends only a part of a turn.
const RETURN: &str = "<|return|>";

/// Tokens that mark the beginning and the end of a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Special {
    pub(super) bos: Option<u32>,
    /// Tokens that stop generation.
    pub(super) ends: BTreeSet<u32>,
    /// Control tokens with the text of an end token. They join `ends` after all files of a directory are read,
    /// so that they are not taken for the token that ends a text.
    pub(super) ends_by_text: Vec<u32>,
    /// Tokens added before a text.
    pub(super) before: Vec<u32>,
    /// Tokens added after a text.
    pub(super) behind: Vec<u32>,
}

impl Special {
    /// Removes tokens outside a vocabulary of `count` tokens, with a warning. `file` names them.
    pub(super) fn retain(&mut self, file: &str, count: usize) {
        let is_token = |id: u32| {
            let is_token = (id as usize) < count;
            if !is_token {
                warn_of_id(file, "begin or end token", id, count);
            }
            is_token
        };
        self.bos = self.bos.filter(|id| is_token(*id));
        self.ends.retain(|id| is_token(*id));
        self.before.retain(|id| is_token(*id));
        self.behind.retain(|id| is_token(*id));
    }
}

/// Returns the tokens among `control` whose texts are those of end tokens. `control` contains the ids and the
/// texts of control tokens. Other tokens may occur within a text, so generation does not stop at them.
pub(super) fn by_text<'a>(control: impl Iterator<Item = (u32, &'a str)>) -> Vec<u32> {
    let mut found: Vec<_> = control.filter(|(_, text)| ENDS.contains(text)).collect();
    if found.iter().any(|(_, text)| *text == RETURN) {
        found.retain(|(_, text)| *text != END);
    }
    found.into_iter().map(|(id, _)| id).collect()
}

/// Warns that a file names a special token that the vocabulary lacks.
pub(super) fn warn_of_id(file: &str, key: &str, id: impl std::fmt::Display, tokens: usize) {
    tracing::warn!(file, key, %id, tokens, "ignoring a special token outside the vocabulary");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_tokens_have_known_texts() {
        let ends = |texts: &[&'static str]| by_text((0..).zip(texts.iter().copied()));
        assert_eq!(ends(&["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>"]), [1, 3, 4]);
        assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), [1, 2]);
        assert_eq!(ends(&["", "<|END|>", "end"]), [] as [u32; 0]);
    }
}
