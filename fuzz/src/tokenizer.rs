//! Builds a tokenizer from an arbitrary vocabulary and encodes arbitrary text. If Ragtag accepts a
//! vocabulary that contains all bytes, decoding must return the encoded text.
//!
//! Input that starts with `{` is read as a `tokenizer.json`. Input that starts with a line feed (0x0A, the
//! protobuf tag of field 1) is read as a `tokenizer.model`. Other input is a byte of flags, a line with the
//! text, and one line per token.

use super::short;
use ragtag_graph::gguf::Writer;
use ragtag_graph::{Directory, MemorySource, ModelFile, Tokenizer};
use std::collections::BTreeSet;
use std::sync::Arc;

const TEXTS: [&str; 5] = ["", " a", "Once upon  a time\n\té 😀 <s>x</s>", "abab 12345 don't", "▁<0x41>\u{0}"];

/// Returns whether the vocabulary is valid.
pub fn run(data: &[u8]) -> bool {
    match data.first() {
        None => false,
        Some(b'{') => file("tokenizer.json", data),
        Some(b'\n') => file("tokenizer.model", data),
        Some(flags) if flags & 8 == 0 => scored(*flags, &data[1..]),
        Some(flags) => byte_level(*flags, &data[1..]),
    }
}

/// Tests `data` as the tokenizer file `name` in a model directory. Returns whether the file is valid.
fn file(name: &str, data: &[u8]) -> bool {
    let mut directory = Directory::new("fuzz");
    directory.insert(name, Arc::new(MemorySource::new(format!("fuzz/{name}"), data.to_vec())));
    match Tokenizer::from_directory(&directory) {
        Ok(tokenizer) => {
            TEXTS.iter().for_each(|text| check(&tokenizer, text));
            true
        }
        Err(error) => short(&error),
    }
}

/// Tests a vocabulary with scores in a GGUF file. The first character of each line gives the type of a
/// token, the second character gives its score, and the rest is its text.
fn scored(flags: u8, data: &[u8]) -> bool {
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
    header.put("tokenizer.ggml.model", if flag(2) { "t5" } else { "llama" });
    header.put("tokenizer.ggml.tokens", &texts[..]);
    header.put("tokenizer.ggml.scores", &scores[..]);
    header.put("tokenizer.ggml.token_type", &types[..]);
    header.put("tokenizer.ggml.add_space_prefix", flag(1));
    header.put("tokenizer.ggml.bos_token_id", u32::from(flags >> 4));
    let Some(tokenizer) = from_header(&header) else { return false };
    check(&tokenizer, text);
    // With all byte tokens, decoding returns the text, except that the escape of a space becomes a space.
    if flag(0) && !types.contains(&5) {
        let ids = tokenizer.encode(text, false).expect("bytes express anything");
        assert_eq!(tokenizer.decode(&ids), text.replace('▁', " "));
    }
    true
}

/// Tests a byte-level vocabulary in a GGUF file. The vocabulary contains all bytes. Each line is a merge of
/// two tokens, separated by a space. A line that starts with digit N is a token of type N instead.
fn byte_level(flags: u8, data: &[u8]) -> bool {
    const NAMES: [&str; 8] =
        ["default", "llama-bpe", "gpt-2", "qwen2", "smollm", "tekken", "deepseek-coder", "bloom"];
    let input = String::from_utf8_lossy(data);
    let mut lines = input.split('\n');
    let text = lines.next().unwrap_or_default();

    let library = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let letters: BTreeSet<String> = library.into_iter().map(String::from).collect();
    let mut known = letters.clone();
    let mut texts: Vec<String> = letters.into_iter().collect();
    let mut types = vec![1i32; texts.len()];
    let mut merges = Vec::new();
    for line in lines {
        match (line.chars().next(), line.split_once(' ')) {
            (Some(kind @ '0'..='7'), _) => {
                types.push(kind as i32 - '0' as i32);
                texts.push(line[1..].to_owned());
            }
            (_, Some((left, right))) => {
                let joined = format!("{left}{right}");
                if known.insert(joined.clone()) {
                    types.push(1);
                    texts.push(joined);
                }
                merges.push(line);
            }
            _ => {}
        }
    }
    let mut header = Writer::new();
    header.put("tokenizer.ggml.model", "gpt2");
    header.put("tokenizer.ggml.pre", NAMES[usize::from(flags & 7)]);
    header.put("tokenizer.ggml.tokens", &texts.iter().map(String::as_str).collect::<Vec<_>>()[..]);
    header.put("tokenizer.ggml.token_type", &types[..]);
    header.put("tokenizer.ggml.merges", &merges[..]);
    header.put("tokenizer.ggml.bos_token_id", u32::from(flags >> 4));
    let Some(tokenizer) = from_header(&header) else { return false };
    check(&tokenizer, text);
    let ids = tokenizer.encode(text, false).expect("bytes express anything");
    assert_eq!(tokenizer.decode(&ids), text);
    true
}

fn from_header(header: &Writer) -> Option<Tokenizer> {
    let source = Arc::new(MemorySource::new("fuzz.gguf", header.header()));
    let model = ModelFile::open(vec![source]).expect("the writer's output is readable");
    match Tokenizer::from_metadata(&model.metadata) {
        Ok(tokenizer) => Some(tokenizer),
        Err(error) => {
            short(&error);
            None
        }
    }
}

fn check(tokenizer: &Tokenizer, text: &str) {
    for ids in [tokenizer.encode(text, true), tokenizer.encode_with_control(text, false)] {
        let ids = ids.expect("bytes or the unknown token express anything");
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()));
        let decoded = tokenizer.decode(&ids);
        let mut stream = tokenizer.stream();
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(streamed + &stream.finish(), decoded);
    }
}
