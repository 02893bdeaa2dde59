//! Tokens that begin and end a text. Tokens that end a turn are found by their texts, because many model files
//! name only the token that ends a text, or none, so generation would not stop at the end of a turn.

use std::collections::BTreeSet;

/// Texts of tokens with a meaning for the model, and whether generation stops at them. The list has all texts of
/// llama.cpp's list. Some files give such a token the type of a normal or user-defined token. It still is a control
/// token, as in llama.cpp.
const NAMES: [(&str, bool); 48] = [
    // Ends of a text.
    ("</s>", true),
    ("<eos>", true),
    ("[EOS]", true),
    ("<|endoftext|>", true),
    ("<|end_of_text|>", true),
    ("<｜end▁of▁sentence｜>", true),
    // Ends of a turn or of a message.
    ("<|im_end|>", true),
    ("<|end|>", true),
    ("<|eot_id|>", true),
    ("<|eom_id|>", true),
    ("<end_of_turn>", true),
    ("<turn|>", true),
    ("<end_of_utterance>", true),
    ("<|endofturn|>", true),
    ("<|END_OF_TURN_TOKEN|>", true),
    ("<EOT>", true),
    ("_<EOT>", true),
    ("▁<EOT>", true),
    ("[EOT]", true),
    ("[e~[", true),
    ("<|return|>", true),
    ("<|flush|>", true),
    // Calls of tools, which the caller answers.
    ("<|call|>", true),
    ("<|calls|>", true),
    ("<|tool_response>", true),
    // Padding, and beginnings of the next file or repository, after a completion of code.
    ("<|fim_pad|>", true),
    ("<fim-pad>", true),
    ("<fim_pad>", true),
    ("<PAD>", true),
    ("[PAD]", true),
    ("<|fim_repo|>", true),
    ("<|repo_name|>", true),
    ("<fim-repo>", true),
    ("<REPO>", true),
    ("<reponame>", true),
    ("<|file_sep|>", true),
    // Texts before, after and between which the model writes code.
    ("<|fim_prefix|>", false),
    ("<fim-prefix>", false),
    ("<fim_prefix>", false),
    ("<｜fim▁begin｜>", false),
    ("<|fim_suffix|>", false),
    ("<fim-suffix>", false),
    ("<fim_suffix>", false),
    ("<｜fim▁hole｜>", false),
    ("<|fim_middle|>", false),
    ("<fim-middle>", false),
    ("<fim_middle>", false),
    ("<｜fim▁end｜>", false),
];

/// Token that ends a text, or an HTML tag.
const END_OF_TEXT: &str = "</s>";
/// HTML tag. In a vocabulary with this token, [`END_OF_TEXT`] is an HTML tag, too, unless the file says otherwise.
const BOLD_END: &str = "</b>";

/// Returns the position and the text of the tokens among `texts` that are control tokens because of their texts.
/// `texts` has no tokens that stand for ordinary text.
pub(super) fn control_names<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<(usize, &'a str)> {
    let (mut found, mut has_tags) = (Vec::new(), false);
    for (at, text) in texts.enumerate() {
        has_tags |= text == BOLD_END;
        // Comparing all texts of a large vocabulary with all names takes tens of milliseconds.
        if text.ends_with(['>', ']', '[']) && NAMES.iter().any(|(name, _)| *name == text) {
            found.push((at, text));
        }
    }
    found.retain(|(_, text)| !has_tags || *text != END_OF_TEXT);
    found
}

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

/// Returns whether `text` is the text of an end token.
pub(super) fn is_end(text: &str) -> bool {
    NAMES.iter().any(|(name, ends)| *ends && *name == text)
}

/// Splits the tokens among `control` with the texts of end tokens into those that stop generation, and those that
/// do not because of other tokens in the vocabulary. `control` has the ids and the texts of control tokens.
pub(super) fn by_text<'a>(control: impl Iterator<Item = (u32, &'a str)>) -> (Vec<u32>, Vec<u32>) {
    let found: Vec<_> = control.filter(|(_, text)| is_end(text)).collect();
    let has = |name: &str| found.iter().any(|(_, text)| *text == name);
    // Here, `<|end|>` ends only a part of a turn.
    let has_parts =
        has("<|call|>") && has("<|return|>") || (has("<|call|>") || has("<|calls|>")) && has("<|flush|>");
    // Here, `</s>` is an HTML tag.
    let has_tags = has("<|tool_response>");
    let (within, ends): (Vec<_>, Vec<_>) = found
        .iter()
        .partition(|(_, text)| has_parts && *text == "<|end|>" || has_tags && *text == END_OF_TEXT);
    let ids = |tokens: Vec<(u32, &str)>| tokens.into_iter().map(|(id, _)| id).collect();
    (ids(ends), ids(within))
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
        assert_eq!(ends(&["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>"]), (vec![1, 3, 4], vec![]));
        assert_eq!(ends(&["", "<|END|>", "end", "<fim_prefix>"]), (vec![], vec![]));
        // The four vocabularies in which llama.cpp leaves a token out.
        assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), (vec![1, 2], vec![0]));
        assert_eq!(ends(&["<|end|>", "<|flush|>", "<|calls|>"]), (vec![1, 2], vec![0]));
        assert_eq!(ends(&["<|end|>", "<|return|>"]), (vec![0, 1], vec![]));
        assert_eq!(ends(&["</s>", "<turn|>", "<|tool_response>"]), (vec![1, 2], vec![0]));
    }

    #[test]
    fn names_of_control_tokens_are_not_html_tags() {
        let names = |texts: &[&'static str]| control_names(texts.iter().copied());
        assert_eq!(names(&["a", "</s>", "<EOT>"]), [(1, "</s>"), (2, "<EOT>")]);
        assert_eq!(names(&["</s>", "<EOT>", "</b>"]), [(1, "<EOT>")]);
    }
}
