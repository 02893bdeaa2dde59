//! Tokens that end a turn, found by their texts. Many model files name only the token that ends a text, or
//! none, so generation would not stop at the end of a turn.

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

/// Returns the tokens among `control` whose texts are those of end tokens. `control` contains the ids and the
/// texts of control tokens. Other tokens may occur within a text, so generation does not stop at them.
pub(super) fn by_text<'a>(control: impl Iterator<Item = (u32, &'a str)>) -> Vec<u32> {
    let mut found: Vec<_> = control.filter(|(_, text)| ENDS.contains(text)).collect();
    if found.iter().any(|(_, text)| *text == RETURN) {
        found.retain(|(_, text)| *text != END);
    }
    found.into_iter().map(|(id, _)| id).collect()
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
