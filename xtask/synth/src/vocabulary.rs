//! Creates a SentencePiece-style vocabulary of any size. It contains special tokens, bytes and characters,
//! and then words over the letters, ordered by length.
//!
//! Every prefix of a word is also a token, so that merges can produce every word.

use ragtag_graph::gguf::Writer;

const SPECIALS: [&str; 3] = ["<unk>", "<s>", "</s>"];
const BYTES: u32 = 256;
/// Minimum size of a vocabulary. A vocabulary of this size holds only the special tokens, the bytes and one
/// character.
pub const LEAST: u32 = SPECIALS.len() as u32 + BYTES + 1;

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const NORMAL: i32 = 1;
const BYTE: i32 = 6;

/// Writes a vocabulary of `size` tokens to a GGUF header. `size` is at least [`LEAST`].
pub fn describe(header: &mut Writer, size: u32) {
    let mut tokens: Vec<String> = SPECIALS.map(str::to_owned).to_vec();
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    tokens.extend((0..BYTES).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), BYTE);
    // Scores fall with the token id. Special tokens and bytes have score 0.
    let mut scores = vec![0f32; tokens.len()];
    tokens.extend(texts().take((size as usize).saturating_sub(types.len())));
    types.resize(tokens.len(), NORMAL);
    scores.extend((0..tokens.len() - scores.len()).map(|n| -(n as f32)));

    let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
    header.put("tokenizer.ggml.model", "llama");
    header.put("tokenizer.ggml.tokens", &texts[..]);
    header.put("tokenizer.ggml.scores", &scores[..]);
    header.put("tokenizer.ggml.token_type", &types[..]);
    header.put("tokenizer.ggml.unknown_token_id", 0u32);
    header.put("tokenizer.ggml.bos_token_id", 1u32);
    header.put("tokenizer.ggml.eos_token_id", 2u32);
    header.put("tokenizer.ggml.add_bos_token", true);
    header.put("tokenizer.ggml.add_eos_token", false);
}

/// Yields `▁`, the printable ASCII characters, and then all words of two letters, three letters and so on
/// without end.
fn texts() -> impl Iterator<Item = String> {
    let characters = std::iter::once('▁').chain((0x21..0x7fu8).map(char::from));
    let letters = || std::iter::once('▁').chain('a'..='z');
    let words = (2u32..).flat_map(move |length| {
        let count = 27u64.pow(length);
        (0..count).map(move |number| {
            (0..length)
                .rev()
                .filter_map(|place| letters().nth((number / 27u64.pow(place) % 27) as usize))
                .collect()
        })
    });
    characters.map(String::from).chain(words)
}
