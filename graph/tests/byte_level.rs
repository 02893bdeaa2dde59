//! Compares byte-level tokenizers with recorded results from other libraries.
//!
//! `data/byte-level.json.zst` contains a small vocabulary, trained on `tests/support/golden/held.txt` and a few
//! lines in other scripts. It also contains the output of the Python packages `tokenizers` 0.23 (which uses a
//! different regex engine) and `tiktoken` 0.14. `data/byte-level.tokenizer.json` contains the same vocabulary
//! in the format of Llama 3, written by `tokenizers`.

use ragtag_graph::gguf::Writer;
use ragtag_graph::{Directory, MemorySource, Metadata, ModelFile, Tokenizer};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Data {
    tokens: Vec<String>,
    merges: Vec<String>,
    control: Vec<String>,
    user_defined: Vec<String>,
    texts: Vec<String>,
    cases: Vec<Case>,
    decode: Vec<Decoded>,
}

/// Expected ids of all texts for one pre-tokenizer.
#[derive(Deserialize)]
struct Case {
    pre: String,
    /// Names of the libraries that return these ids.
    by: Vec<String>,
    ids: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    text: String,
}

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

fn data() -> Data {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = test_support::unpacked(&folder.join("tests/data/byte-level.json.zst"));
    serde_json::from_str(&text).unwrap()
}

impl Data {
    /// Builds the metadata of a GGUF file. User-defined tokens follow the vocabulary, and control tokens come
    /// last.
    fn metadata(&self, more: impl FnOnce(&mut Writer)) -> Metadata {
        let texts = [&self.tokens[..], &self.user_defined, &self.control].concat();
        let mut types = vec![NORMAL; self.tokens.len()];
        types.resize(types.len() + self.user_defined.len(), USER_DEFINED);
        types.resize(texts.len(), CONTROL);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let merges: Vec<&str> = self.merges.iter().map(String::as_str).collect();
        let mut w = Writer::new();
        w.put("tokenizer.ggml.model", "gpt2");
        w.put("tokenizer.ggml.tokens", &texts[..]);
        w.put("tokenizer.ggml.token_type", &types[..]);
        w.put("tokenizer.ggml.merges", &merges[..]);
        more(&mut w);
        ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap().metadata
    }

    fn tokenizer(&self, pre: &str) -> Tokenizer {
        let metadata = self.metadata(|w| {
            w.put("tokenizer.ggml.pre", pre);
            w.put("tokenizer.ggml.bos_token_id", self.bos());
            w.put("tokenizer.ggml.eos_token_id", self.bos() + 1);
            w.put("tokenizer.ggml.eot_token_id", self.bos() + 2);
        });
        Tokenizer::from_metadata(&metadata).unwrap()
    }

    /// Returns the id of the first control token.
    fn bos(&self) -> u32 {
        (self.tokens.len() + self.user_defined.len()) as u32
    }
}

fn tokenizer_json() -> &'static str {
    include_str!("data/byte-level.tokenizer.json")
}

fn from_json(json: &str, config: &str) -> Result<Tokenizer, ragtag_graph::TokenizerError> {
    let mut directory = Directory::new("d");
    let source =
        |name: &str, text: &str| Arc::new(MemorySource::new(format!("d/{name}"), text.as_bytes().to_vec()));
    directory.insert("tokenizer.json", source("tokenizer.json", json));
    directory.insert("tokenizer_config.json", source("tokenizer_config.json", config));
    Tokenizer::from_directory(&directory)
}

#[test]
fn ids_match_other_libraries() {
    let data = data();
    assert!(data.texts.len() > 60 && data.cases.len() >= 10);
    assert!(data.cases.iter().filter(|case| case.by.len() == 2).count() >= 5);
    for case in &data.cases {
        let tokenizer = data.tokenizer(&case.pre);
        for (text, ids) in data.texts.iter().zip(&case.ids) {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{}: {text:?}", case.pre);
            assert_eq!(&tokenizer.decode(ids), text, "{}", case.pre);
        }
    }
}

#[test]
fn a_tokenizer_json_gives_the_same_ids() {
    let data = data();
    let ours = from_json(tokenizer_json(), "{}").unwrap();
    let from_gguf = data.tokenizer("llama-bpe");
    let mut library: tokenizers::Tokenizer = tokenizer_json().parse().unwrap();
    for text in &data.texts {
        let with_control = ours.encode_with_control(text, true).unwrap();
        assert_eq!(with_control, library.encode(text.as_str(), true).unwrap().get_ids(), "{text:?}");
        assert_eq!(with_control, from_gguf.encode_with_control(text, true).unwrap(), "{text:?}");
        assert_eq!(ours.decode(&with_control), library.decode(&with_control, true).unwrap(), "{text:?}");
        let plain = ours.encode(text, true).unwrap();
        assert_eq!(plain, from_gguf.encode(text, true).unwrap(), "{text:?}");
        library.set_encode_special_tokens(true);
        assert_eq!(plain, library.encode(text.as_str(), true).unwrap().get_ids(), "{text:?}");
        library.set_encode_special_tokens(false);
        assert_eq!(plain[0], data.bos());
        assert_eq!(&ours.decode(&plain), text);
    }
    assert_eq!(ours.vocabulary_size(), from_gguf.vocabulary_size());
}

/// Checks that a stream returns only whole characters if tokens end within characters, and U+FFFD for invalid
/// bytes.
#[test]
fn streams_hold_back_incomplete_characters() {
    let data = data();
    let tokenizer = data.tokenizer("gpt-2");
    for case in &data.decode {
        assert_eq!(tokenizer.decode(&case.ids), case.text);
    }
    assert!(data.decode.iter().any(|case| case.text.contains('\u{fffd}')), "ill-formed UTF-8 is among them");
    let text = "naïve 😀👩\u{200d}👩 中文 ok";
    let ids = tokenizer.encode(text, false).unwrap();
    let mut stream = tokenizer.stream();
    let shown: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert!(shown.iter().any(String::is_empty), "some token ends within a character");
    assert!(shown.iter().all(|part| !part.contains('\u{fffd}')), "{shown:?}");
    assert_eq!(shown.concat() + &stream.finish(), text);
    // The texts contain half a character before a letter, and half a character at the end.
    let byte = |letter: &str| data.tokens.iter().position(|token| token == letter).unwrap() as u32;
    let (first, second, a) = (byte("ð"), byte("Ł"), byte("a"));
    assert_eq!(tokenizer.decode(&[first, second, a]), "\u{fffd}a");
    assert_eq!(tokenizer.decode(&[a, first, second]), "a\u{fffd}");
    // Decoding does not strip spaces from the start of a text.
    assert_eq!(tokenizer.decode(&tokenizer.encode("  x", false).unwrap()), "  x");
}

#[test]
fn adds_begin_and_end_tokens_if_file_or_table_say_so() {
    let data = data();
    let bos = data.bos();
    let with = |pre: &str, more: &dyn Fn(&mut Writer)| {
        let metadata = data.metadata(|w| {
            w.put("tokenizer.ggml.pre", pre);
            w.put("tokenizer.ggml.bos_token_id", bos);
            w.put("tokenizer.ggml.eos_token_id", bos + 1);
            more(w);
        });
        Tokenizer::from_metadata(&metadata).unwrap().encode("", true).unwrap()
    };
    let no_ids: [u32; 0] = [];
    assert_eq!(with("llama-bpe", &|_| ()), [bos]);
    assert_eq!(with("gpt-2", &|_| ()), no_ids);
    assert_eq!(with("llama-bpe", &|w| w.put("tokenizer.ggml.add_bos_token", false)), no_ids);
    assert_eq!(with("gpt-2", &|w| w.put("tokenizer.ggml.add_bos_token", true)), [bos]);
    assert_eq!(with("gpt-2", &|w| w.put("tokenizer.ggml.add_eos_token", true)), [bos + 1]);
    let tokenizer = data.tokenizer("llama3");
    assert_eq!(tokenizer.eos().iter().copied().collect::<Vec<_>>(), [bos + 1, bos + 2]);

    let json = |config: &str| from_json(tokenizer_json(), config).map(|t| t.encode("", true).unwrap());
    assert_eq!(json("{}").unwrap(), [bos]);
    assert_eq!(json(r#"{"bos_token": "<|begin_of_text|>", "add_bos_token": false}"#).unwrap(), no_ids);
    let both = r#"{"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|eot_id|>", "add_eos_token": true}"#;
    assert_eq!(json(both).unwrap(), [bos, bos + 2]);
    let error = json(r#"{"add_eos_token": true}"#).unwrap_err().to_string();
    assert_eq!(error, "d/tokenizer_config.json: the vocabulary has no end token to add");
    assert_eq!(json(r#"{"eos_token": "</s>"}"#).unwrap(), [bos], "a text that is no token counts as missing");
    let error = json(r#"{"eos_token": 7}"#).unwrap_err().to_string();
    assert!(error.contains("has a eos_token without a text"), "{error}");
}

#[test]
fn errors_name_unknown_pre_tokenizers_and_bad_vocabularies() {
    let data = data();
    let fails = |data: &Data, more: &dyn Fn(&mut Writer)| {
        Tokenizer::from_metadata(&data.metadata(more)).unwrap_err().to_string()
    };
    let unknown = fails(&data, &|w| w.put("tokenizer.ggml.pre", "chameleon"));
    assert!(unknown.contains("pre-tokenizer \"chameleon\" (tokenizer.ggml.pre) is not known"), "{unknown}");
    assert!(
        ["llama-bpe", "qwen2", "gpt-2", "default"].iter().all(|name| unknown.contains(name)),
        "{unknown}"
    );

    // Old files have no name. llama.cpp then guesses the same rules.
    let (named, unnamed) =
        (data.tokenizer("default"), Tokenizer::from_metadata(&data.metadata(|_| ())).unwrap());
    for text in &data.texts {
        assert_eq!(unnamed.encode(text, false).unwrap(), named.encode(text, false).unwrap(), "{text:?}");
    }

    let gpt2 = |w: &mut Writer| w.put("tokenizer.ggml.pre", "gpt-2");
    let changed = |change: &dyn Fn(&mut Data)| {
        let mut data = self::data();
        change(&mut data);
        fails(&data, &gpt2)
    };
    let merge = |merge: &str| changed(&|data| data.merges[3] = merge.into());
    assert!(merge("ab").contains("has the merge \"ab\", which is not two tokens"));
    assert!(merge("a b c").contains("has the merge \"a b c\", which is not two tokens"));
    assert!(merge("zz zz").contains("has invalid merges"));
}

/// Checks that a byte without a token is dropped, also within a word. The values are those of the Python package
/// `tokenizers` 0.23 with the same vocabulary.
#[test]
fn bytes_without_tokens_are_dropped() {
    let tokens = ["!", "a", "b", "ab", "!!", "Ġ", "À"];
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "gpt2");
    w.put("tokenizer.ggml.pre", "gpt-2");
    w.put("tokenizer.ggml.tokens", &tokens[..]);
    w.put(
        "tokenizer.ggml.token_type",
        &[NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED][..],
    );
    w.put("tokenizer.ggml.merges", &["a b", "! !"][..]);
    let model = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap();
    let tokenizer = Tokenizer::from_metadata(&model.metadata).unwrap();
    for (text, ids) in [
        ("ab", &[3][..]),
        ("a\u{4}b", &[1, 2]),
        ("!\u{4}!", &[4]),
        ("\u{4}", &[]),
        ("ab ab", &[3, 5, 3]),
        ("a\u{c0}b", &[1, 6, 2]),
    ] {
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
    }
}

/// Checks that the encoding time does not grow with the square of the length, for long texts and for long
/// runs of one character. A square would make a text of four times the length take 16 times as long.
#[test]
fn long_texts_take_linear_time() {
    let data = data();
    let tokenizer = data.tokenizer("llama-bpe");
    let tale: String =
        std::fs::read_to_string(test_support::golden("held.txt")).unwrap().chars().take(10_000).collect();
    for text in [&tale, &" ".repeat(10_000), &"a".repeat(10_000), &"\n".repeat(10_000), &"é😀".repeat(2_500)]
    {
        let time = |text: &str| {
            let once = || {
                let start = std::time::Instant::now();
                let ids = tokenizer.encode(text, false).unwrap();
                let took = start.elapsed();
                assert_eq!(tokenizer.decode(&ids), text);
                took
            };
            (0..3).map(|_| once()).min().unwrap()
        };
        let (once, fourfold) = (time(text), time(&text.repeat(4)));
        assert!(fourfold < once * 10, "{once:?}, four times as much {fourfold:?}");
    }
}
