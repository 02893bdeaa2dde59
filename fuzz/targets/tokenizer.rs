//! Any vocabulary, and any text in it: the tokenizer is built or refuses, and what it encodes it can decode.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ragtag_graph::gguf::Writer;
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use std::sync::Arc;

// The input: flags, then lines. The first line is the text; each other line is a token, a byte for its type, one for
// its score, then its text.
fuzz_target!(|data: &[u8]| {
    let Some((flags, data)) = data.split_first() else { return };
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let input = String::from_utf8_lossy(data);
    let mut lines = input.split('\n');
    let text = lines.next().unwrap_or_default();

    let (mut texts, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    if flag(0) {
        texts.extend(bytes.iter().map(String::as_str));
        scores.resize(256, 0f32);
        types.resize(256, 6i32);
    }
    for line in lines {
        let mut characters = line.chars();
        let (Some(kind), Some(score)) = (characters.next(), characters.next()) else { continue };
        types.push(kind as i32 % 8);
        scores.push(if score == '?' { f32::NAN } else { -(score as u32 as f32) });
        texts.push(characters.as_str());
    }
    let mut header = Writer::new();
    header.put("tokenizer.ggml.model", "llama");
    header.put("tokenizer.ggml.tokens", &texts[..]);
    header.put("tokenizer.ggml.scores", &scores[..]);
    header.put("tokenizer.ggml.token_type", &types[..]);
    header.put("tokenizer.ggml.add_space_prefix", flag(1));
    header.put("tokenizer.ggml.bos_token_id", u32::from(flags >> 4));
    let source = Arc::new(MemorySource::new("fuzz.gguf", header.header()));
    let model = ModelFile::open(vec![source]).expect("the writer writes what the reader reads");
    let Ok(tokenizer) = Tokenizer::from_metadata(&model.metadata) else { return };
    for ids in [tokenizer.encode(text, true), tokenizer.encode_with_control(text, flag(2))] {
        let ids = ids.expect("bytes or the unknown token express anything");
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()));
        let decoded = tokenizer.decode(&ids);
        let mut stream = tokenizer.stream();
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(streamed + &stream.finish(), decoded);
    }
    // With all bytes, text comes back, but for the space that is written as its escape.
    if flag(0) && !types.contains(&5) {
        let ids = tokenizer.encode(text, false).expect("checked above");
        assert_eq!(tokenizer.decode(&ids), text.replace('▁', " "));
    }
});
