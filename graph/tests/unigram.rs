//! Compares Unigram tokenizers with the Python package `sentencepiece` 0.2 and the crate `tokenizers`.
//!
//! `data/unigram.json` contains two small vocabularies, trained on `tests/support/golden/held.txt` and a few
//! lines in other scripts, with a small character map. One falls back to bytes and collapses runs of spaces.
//! The file also contains the ids that `sentencepiece` returns for the texts. `data/unigram-*.model` are the
//! same vocabularies in its own format.

use ragtag_graph::gguf::Writer;
use ragtag_graph::{Directory, MemorySource, ModelFile, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Deserialize)]
struct Data {
    texts: Vec<String>,
    models: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    name: String,
    squeeze: bool,
    byte_fallback: bool,
    /// Character map in base 64.
    character_map: String,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    ids: Vec<Vec<u32>>,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

fn data() -> Data {
    serde_json::from_str(include_str!("data/unigram.json")).unwrap()
}

impl Model {
    fn in_gguf(&self) -> Tokenizer {
        let mut w = Writer::new();
        w.put("tokenizer.ggml.model", "t5");
        w.put("tokenizer.ggml.tokens", &self.tokens.iter().map(String::as_str).collect::<Vec<_>>()[..]);
        w.put("tokenizer.ggml.scores", &self.scores[..]);
        w.put("tokenizer.ggml.token_type", &self.types[..]);
        w.put("tokenizer.ggml.remove_extra_whitespaces", self.squeeze);
        w.put("tokenizer.ggml.precompiled_charsmap", &base64::decode(&self.character_map).unwrap()[..]);
        w.put("tokenizer.ggml.eos_token_id", 2u32);
        let model = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap();
        Tokenizer::from_metadata(&model.metadata).unwrap()
    }

    fn in_own_format(&self) -> Tokenizer {
        let bytes: &[u8] = match self.name.as_str() {
            "bytes" => include_bytes!("data/unigram-bytes.model"),
            _ => include_bytes!("data/unigram-unk.model"),
        };
        from_file("tokenizer.model", bytes)
    }

    /// Returns the vocabulary as the `tokenizers` package writes it, with the steps that `transformers` adds.
    fn document(&self) -> Value {
        let of_kind =
            |kind| (0..).zip(&self.tokens).zip(&self.types).filter(move |(_, found)| **found == kind);
        let added = |((id, text), kind): ((usize, &String), &i32)| {
            json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *kind == CONTROL })
        };
        let marker =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": of_kind(CONTROL).chain(of_kind(USER_DEFINED)).map(added).collect::<Vec<_>>(),
            "normalizer": { "type": "Sequence", "normalizers": [
                { "type": "Precompiled", "precompiled_charsmap": self.character_map },
                { "type": "Strip", "strip_left": false, "strip_right": true },
                { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "▁" },
            ] },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, marker] },
            "post_processor": null,
            "decoder": { "type": "Sequence", "decoders": [{ "type": "ByteFallback" }, marker] },
            "model": {
                "type": "Unigram", "unk_id": 0, "byte_fallback": self.byte_fallback,
                "vocab": self.tokens.iter().zip(&self.scores).collect::<Vec<_>>(),
            },
        })
    }
}

fn from_file(name: &str, bytes: &[u8]) -> Tokenizer {
    let mut directory = Directory::new("d");
    directory.insert(name, Arc::new(MemorySource::new(format!("d/{name}"), bytes.to_vec())));
    Tokenizer::from_directory(&directory).unwrap()
}

#[test]
fn ids_match_sentencepiece() {
    let data = data();
    assert!(data.texts.len() > 75 && data.models.len() == 2);
    for model in &data.models {
        let (gguf, own) = (model.in_gguf(), model.in_own_format());
        for (text, ids) in data.texts.iter().zip(&model.ids) {
            // In GGUF files, user-defined tokens cut the text first. Each rest gets its own space, as by llama.cpp.
            let cut = model.name == "bytes" && text == "x<|user|>y <|user|> z";
            let expected = if cut { &vec![260, 124, 3, 260, 281, 3, 260, 126] } else { ids };
            assert_eq!(&gguf.encode(text, false).unwrap(), expected, "{}: {text:?}", model.name);
            assert_eq!(&own.encode(text, false).unwrap(), ids, "{}: {text:?}", model.name);
        }
        // A text in a GGUF file ends with the end token by default, and has no begin token.
        let mut ids = model.ids[2].clone();
        ids.push(2);
        assert_eq!(gguf.encode(&data.texts[2], true).unwrap(), ids);
    }
    let [bytes, unknown] = [0, 1].map(|n| data.models[n].ids.iter().filter(|ids| ids.contains(&0)).count());
    assert!(bytes == 0 && unknown > 50, "one vocabulary has bytes, the other has the unknown token");
}

#[test]
fn a_tokenizer_json_gives_the_ids_of_the_library() {
    let data = data();
    for model in &data.models {
        let document = model.document().to_string();
        let ours = from_file("tokenizer.json", document.as_bytes());
        let mut library: tokenizers::Tokenizer = document.parse().unwrap();
        let names = |text: &&String| text.contains("<0x") || text.contains("<unk>");
        for text in data.texts.iter().filter(|text| !names(text)) {
            let theirs = library.encode(text.as_str(), false).unwrap();
            let ours = ours.encode_with_control(text, false).unwrap();
            assert_eq!(ours, theirs.get_ids(), "{}: {text:?}", model.name);
        }
        library.set_encode_special_tokens(true);
        for text in data.texts.iter().filter(|text| !names(text) && !text.contains("<s>")) {
            let theirs = library.encode(text.as_str(), false).unwrap();
            assert_eq!(ours.encode(text, false).unwrap(), theirs.get_ids(), "{}: {text:?}", model.name);
        }
    }
}

/// Checks that the names of control tokens, byte tokens and the unknown token are plain text. The library
/// would turn them into these tokens.
#[test]
fn names_of_tokens_are_text() {
    for model in data().models {
        let document = model.document().to_string();
        for t in [from_file("tokenizer.json", document.as_bytes()), model.in_gguf(), model.in_own_format()] {
            let ids = t.encode("<s>a</s><0x41><unk>", false).unwrap();
            let reserved = |id: u32| id < 3 && (model.byte_fallback || id != 0);
            assert!(!ids.iter().any(|id| reserved(*id)), "{}: {ids:?}", model.name);
            if model.byte_fallback {
                assert_eq!(t.decode(&ids), "<s>a</s><0x41><unk>");
            }
        }
    }
}
