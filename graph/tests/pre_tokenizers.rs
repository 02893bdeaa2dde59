//! Compares tokenizers that have the settings of released models with recorded results of `transformers`.
//!
//! `data/pre_tokenizers.json.zst` contains these settings, and digests of the tokens of many texts and of what
//! they decode to. `data/pre_tokenizers.py` writes it, and describes the vocabularies.

use ragtag_graph::gguf::Writer;
use ragtag_graph::{Directory, MemorySource, ModelFile, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Deserialize)]
struct Data {
    /// The characters that stand for the bytes, which are the first tokens of the byte-level vocabulary.
    letters: String,
    merges: Vec<String>,
    /// Tokens that no merges make.
    whole: Vec<String>,
    texts: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// Names of the pre-tokenizer in GGUF files.
    pre: Vec<String>,
    /// The `tokenizer.json` without its vocabulary.
    document: Value,
    /// Four digits per text: digests of its tokens, with special tokens recognized and added, and of the text
    /// to which they decode.
    all: String,
    /// The same for tokens of the text alone, with special tokens taken as text.
    plain: String,
}

impl Data {
    fn read() -> Data {
        #[derive(Deserialize)]
        struct Texts {
            texts: Vec<String>,
        }
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let read = |name: &str| test_support::unpacked(&folder.join(format!("{name}.json.zst")));
        let mut data: Data = serde_json::from_str(&read("pre_tokenizers")).unwrap();
        let mut old: Texts = serde_json::from_str(&read("byte-level")).unwrap();
        old.texts.append(&mut data.texts);
        Data { texts: old.texts, ..data }
    }

    /// Returns the tokens of the byte-level vocabulary.
    fn tokens(&self) -> Vec<String> {
        let letters = self.letters.chars().map(String::from);
        let merged = self.merges.iter().map(|merge| merge.replace(' ', ""));
        let mut seen = std::collections::HashSet::new();
        let all = letters.chain(merged).chain(self.whole.iter().cloned());
        all.filter(|token| seen.insert(token.clone())).collect()
    }

    fn in_directory(&self, case: &Case) -> Tokenizer {
        let mut document = case.document.clone();
        document["model"] = if document["model"]["vocabulary"] == "tiny-hf" {
            let path = test_support::golden("tiny-hf").join("tokenizer.json");
            serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap()["model"].take()
        } else {
            let vocab: HashMap<String, usize> = self.tokens().into_iter().zip(0..).collect();
            let ignore_merges = &document["model"]["ignore_merges"];
            json!({ "type": "BPE", "vocab": vocab, "merges": self.merges, "ignore_merges": ignore_merges })
        };
        let mut directory = Directory::new("d");
        let source = MemorySource::new("d/tokenizer.json", document.to_string().into_bytes());
        directory.insert("tokenizer.json", Arc::new(source));
        Tokenizer::from_directory(&directory).unwrap_or_else(|error| panic!("{}: {error}", case.name))
    }

    /// Builds the tokenizer from GGUF metadata, which has no normalizer, and adds no token to a text.
    fn in_gguf(&self, case: &Case, pre: &str) -> Tokenizer {
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const USER_DEFINED: i32 = 4;
        let mut tokens = self.tokens();
        let mut types = vec![NORMAL; tokens.len()];
        for added in case.document["added_tokens"].as_array().unwrap() {
            tokens.push(added["content"].as_str().unwrap().to_owned());
            types.push(if added["special"] == true { CONTROL } else { USER_DEFINED });
        }
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let merges: Vec<&str> = self.merges.iter().map(String::as_str).collect();
        let mut w = Writer::new();
        w.put("tokenizer.ggml.model", "gpt2");
        w.put("tokenizer.ggml.pre", pre);
        w.put("tokenizer.ggml.tokens", &tokens[..]);
        w.put("tokenizer.ggml.token_type", &types[..]);
        w.put("tokenizer.ggml.merges", &merges[..]);
        w.put("tokenizer.ggml.add_bos_token", false);
        let source = Arc::new(MemorySource::new("m.gguf", w.header()));
        let metadata = ModelFile::open(vec![source]).unwrap().metadata;
        Tokenizer::from_metadata(&metadata).unwrap_or_else(|error| panic!("{}: {error}", case.name))
    }
}

/// Returns 16 bits of the FNV-1a hash of the ids and of the text, as four digits.
fn digest(ids: &[u32], text: &str) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let all = format!("{}|{text}", ids.join(","));
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:04x}", all.bytes().fold(0xcbf2_9ce4_8422_2325, step) & 0xffff)
}

/// Checks the tokens of all texts against digests. Returns the texts whose digests differ.
fn differing<'a>(
    data: &'a Data,
    digests: &str,
    tokenizer: &Tokenizer,
    encode: impl Fn(&str) -> Vec<u32>,
) -> Vec<(&'a str, Vec<u32>)> {
    assert_eq!(digests.len(), 4 * data.texts.len());
    let texts = data.texts.iter().zip(digests.as_bytes().chunks_exact(4));
    let found = texts.filter_map(|(text, expected)| {
        let ids = encode(text);
        let differs = digest(&ids, &tokenizer.decode(&ids)).as_bytes() != expected;
        differs.then_some((text.as_str(), ids))
    });
    found.collect()
}

#[test]
fn directories_match_transformers() {
    let data = Data::read();
    assert!(data.texts.len() > 180 && data.cases.len() >= 17);
    let mut wrong = Vec::new();
    for case in &data.cases {
        let tokenizer = data.in_directory(case);
        let all = differing(&data, &case.all, &tokenizer, |text| {
            tokenizer.encode_with_control(text, true).unwrap()
        });
        let plain = differing(&data, &case.plain, &tokenizer, |text| tokenizer.encode(text, false).unwrap());
        let describe = |kind, (text, ids)| format!("{}, {kind}: {text:?} {ids:?}", case.name);
        wrong.extend(all.into_iter().map(|found| describe("with special tokens", found)));
        wrong.extend(plain.into_iter().map(|found| describe("plain", found)));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares GGUF files with the same pre-tokenizer by its name. They do not say how to normalise a text, so
/// only texts that stay the same count.
#[test]
fn gguf_files_match_transformers() {
    let data = Data::read();
    let mut wrong = Vec::new();
    for case in data.cases.iter().filter(|case| !case.pre.is_empty()) {
        let is_composed = |text: &str| {
            case.document["normalizer"].is_null()
                || tokenizers::NormalizedString::from(text).nfc().get() == text
        };
        for pre in &case.pre {
            let tokenizer = data.in_gguf(case, pre);
            let plain =
                differing(&data, &case.plain, &tokenizer, |text| tokenizer.encode(text, false).unwrap());
            let plain = plain.into_iter().filter(|(text, _)| is_composed(text));
            wrong.extend(plain.map(|(text, ids)| format!("{}, {pre}: {text:?} {ids:?}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
