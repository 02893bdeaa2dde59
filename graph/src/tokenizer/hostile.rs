//! Tests with corrupt and unusual tokenizer files: `tokenizer.model` and `tokenizer.json`. The module `tests`
//! covers vocabularies in GGUF files.

use super::*;
use crate::source::Directory;
use crate::source::MemorySource;
use proptest::prelude::*;
use serde_json::{Value, json};

fn directory(files: &[(&str, &[u8])]) -> Directory {
    let mut directory = Directory::new("d");
    for (name, bytes) in files {
        directory.insert(*name, Arc::new(MemorySource::new(format!("d/{name}"), bytes.to_vec())));
    }
    directory
}

fn open(name: &str, bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let result = Tokenizer::from_directory(&directory(&[(name, bytes)]));
    if let Err(error) = &result {
        let message = error.to_string();
        assert!(message.len() < 500 && !message.contains(char::is_control), "{message}");
    }
    result
}

// ---- tokenizer.model ----------------------------------------------------------------------------------------------

/// Writer for the protocol buffer wire format.
#[derive(Clone, Default)]
struct Proto(Vec<u8>);

impl Proto {
    fn varint(mut self, mut number: u64) -> Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn number(self, field: u64, number: u64) -> Self {
        self.varint(field << 3).varint(number)
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut all = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        all.0.extend_from_slice(bytes);
        all
    }

    fn float(self, field: u64, value: f32) -> Self {
        let mut all = self.varint(field << 3 | 5);
        all.0.extend_from_slice(&value.to_le_bytes());
        all
    }

    fn piece(self, text: &str, score: f32, kind: u64) -> Self {
        let piece = Proto::default().bytes(1, text.as_bytes()).float(2, score).number(3, kind);
        self.bytes(1, &piece.0)
    }
}

const NORMAL: u64 = 1;

/// Builds a `tokenizer.model` with `<unk>`, `<s>`, `</s>` and the pieces in `normal`. The first of these
/// pieces has the highest score.
fn model(normal: &[&str], trainer: &Proto, normaliser: &Proto) -> Vec<u8> {
    let special = Proto::default().piece("<unk>", 0.0, 2).piece("<s>", 0.0, 3).piece("</s>", 0.0, 3);
    let all = normal.iter().zip(0u8..).fold(special, |p, (text, n)| p.piece(text, -f32::from(n), NORMAL));
    all.bytes(2, &trainer.0).bytes(3, &normaliser.0).bytes(99, b"something new").0
}

fn bpe() -> Proto {
    Proto::default().number(3, 2)
}

fn plain() -> Proto {
    Proto::default().number(4, 0)
}

#[test]
fn reads_a_handmade_model() {
    let bytes = model(&["▁a", "▁", "a", "b"], &bpe(), &plain());
    let t = open("tokenizer.model", &bytes).unwrap();
    assert_eq!((t.bos(), t.eos().first().copied(), t.vocabulary_size()), (Some(1), Some(2), 7));
    assert_eq!(t.encode("ab  a", true).unwrap(), [1, 3, 6, 4, 3]);
    assert_eq!(t.encode("x", false).unwrap(), [4, 0]);
    // The begin token may be missing, and the end token may be any token.
    let none = bpe().number(41, -1i64 as u64).number(42, 5);
    let t = open("tokenizer.model", &model(&["▁", "a", "b"], &none, &plain())).unwrap();
    assert_eq!((t.bos(), t.encode("", true).unwrap()), (None, vec![]));
    assert_eq!(*t.eos(), [2, 5].into(), "the text of </s> makes it an end token too");
    let bytes = model(&["▁", "a"], &bpe(), &plain());
    let files = [("tokenizer.model", &bytes[..]), ("tokenizer_config.json", b"{\"bos_token\": \"</s>\"}")];
    let t = Tokenizer::from_directory(&directory(&files)).unwrap();
    assert_eq!((t.bos(), t.encode("", true).unwrap()), (Some(2), vec![2]), "another begin token");
    // The model may add no space before a text, or may trim the text and collapse runs of spaces.
    let no_prefix = plain().number(3, 0);
    let t = open("tokenizer.model", &model(&["▁", "a"], &bpe(), &no_prefix)).unwrap();
    assert_eq!(t.encode(" a", false).unwrap(), [3, 4]);
    assert_eq!(t.decode(&[3, 4]), " a");
    let squeeze = Proto::default().number(4, 1);
    let t = open("tokenizer.model", &model(&["▁", "a"], &bpe(), &squeeze)).unwrap();
    assert_eq!(t.encode("  a   a ", false).unwrap(), [3, 4, 3, 4]);
    assert_eq!(t.encode("   ", false).unwrap(), [0u32; 0]);
}

/// Checks tokens that a model adds to those of its `tokenizer.model`. The ids are those of `LlamaTokenizer` in
/// `transformers` 5.24. But a rest that begins with a space keeps it, as in the library `sentencepiece`.
#[test]
fn added_tokens_are_found_in_the_text() {
    // The ids: ▁a 3, ▁ 4, a 5, b 6.
    let bytes = model(&["▁a", "▁", "a", "b"], &bpe(), &plain());
    let with = |files: &[(&str, &str)]| {
        let mut all = vec![("tokenizer.model", &bytes[..])];
        all.extend(files.iter().map(|(name, text)| (*name, text.as_bytes())));
        Tokenizer::from_directory(&directory(&all))
    };
    let token = |text: &str, flags: &str| format!(r#"{{"content": "{text}"{flags}}}"#);
    let config = format!(
        r#"{{"eos_token": "<end>", "added_tokens_decoder": {{"0": {}, "1": {}, "2": {}, "7": {}, "8": {}, "9": {}, "10": {}}}}}"#,
        token("<unk>", r#", "special": true"#),
        token("<s>", r#", "special": true"#),
        token("</s>", r#", "special": true"#),
        token("<end>", r#", "special": true, "rstrip": true"#),
        token("<b>", ""),
        token("<b>b", r#", "lstrip": true"#),
        token("ab", r#", "single_word": true"#),
    );
    let t = with(&[("tokenizer_config.json", &config)]).unwrap();
    assert_eq!(t.vocabulary_size(), 11);
    assert_eq!(*t.eos(), [2, 7].into());
    for (text, ids) in [
        ("a<end>  a", &[3, 7, 3][..]),
        ("a<b>a", &[3, 8, 3]),
        ("a <b>b", &[3, 9]),
        ("a <b> b", &[3, 4, 8, 4, 4, 6]),
        ("<unk>a</s><s>", &[0, 3, 2, 1]),
        ("ab", &[10]),
        ("bab", &[4, 6, 5, 6]),
    ] {
        assert_eq!(t.encode_with_control(text, false).unwrap(), ids, "{text}");
    }
    assert_eq!(t.encode("<b>", false).unwrap(), [8], "only special tokens are text by default");
    assert!(!t.encode("<end><s>", false).unwrap().iter().any(|id| [1, 7].contains(id)));
    assert_eq!(t.decode(&[3, 7, 8, 10]), "a<b>ab");
    // In newer models, only the start of a text gets a space.
    let newer = config.replacen('{', r#"{"legacy": false, "#, 1);
    let t = with(&[("tokenizer_config.json", &newer)]).unwrap();
    for (text, ids) in [
        ("a<end>  a", &[3, 7, 5][..]),
        ("a<b>a", &[3, 8, 5]),
        ("a <b> b", &[3, 4, 8, 4, 6]),
        ("<unk>a</s><s>", &[0, 5, 2, 1]),
    ] {
        assert_eq!(t.encode_with_control(text, false).unwrap(), ids, "{text}");
    }
    // The older file has only ids. The settings say which tokens are special.
    let config = r#"{"additional_special_tokens": ["<x>"], "eos_token": {"content": "<end>"}}"#;
    let added = r#"{"<b>": 8, "<end>": 7, "<x>": 10}"#;
    let t = with(&[("tokenizer_config.json", config), ("added_tokens.json", added)]).unwrap();
    assert_eq!(t.encode_with_control("a<b>a<x>", false).unwrap(), [3, 8, 3, 10]);
    assert_eq!(t.decode(&[3, 7, 8, 9, 10]), "a<b>", "there may be gaps");
    let fails = |name, json| with(&[(name, json)]).unwrap_err().to_string();
    let far = fails("added_tokens.json", r#"{"<b>": 70000}"#);
    assert!(far.contains("has the id 70000 for \"<b>\", but far fewer tokens"), "{far}");
    assert!(fails("added_tokens.json", r#"{"<b>": -1}"#).contains("has an invalid added token \"<b>\""));
    let odd = fails("tokenizer_config.json", r#"{"added_tokens_decoder": {"x": {"content": "<b>"}}}"#);
    assert!(odd.contains("has an invalid added token \"x\""), "{odd}");
}

#[test]
fn rejects_unsupported_models() {
    let fails = |trainer: &Proto, normaliser: &Proto| {
        open("tokenizer.model", &model(&["▁"], trainer, normaliser)).unwrap_err().to_string()
    };
    let word = Proto::default().number(3, 3);
    assert_eq!(
        fails(&word, &plain()),
        "d/tokenizer.model: not supported: a SentencePiece model that is neither of type BPE nor of type Unigram"
    );
    assert!(fails(&bpe(), &plain().bytes(2, b"map")).contains("has a character map that is truncated"));
    assert!(fails(&bpe().number(24, 1), &plain()).contains("does not write spaces before words"));
    assert!(fails(&bpe(), &plain().number(5, 0)).contains("does not write spaces before words"));
    let fails = |bytes: Vec<u8>| open("tokenizer.model", &bytes).unwrap_err().to_string();
    assert!(fails(model(&["a"], &bpe(), &plain())).contains("no token for the space (▁)"));
    let piece = |score, kind| Proto::default().piece("x", score, kind).bytes(2, &bpe().0).0;
    assert!(fails(piece(f32::NAN, 1)).contains("has no score for token 0 (x)"));
    assert!(fails(piece(0.0, 7)).contains("of the unknown type 7"));
    assert!(fails(piece(0.0, u64::MAX)).contains("of the unknown type -1"));
    assert!(fails(piece(0.0, 6)).contains("that should be a byte"));
}

#[test]
fn rejects_invalid_protocol_buffers() {
    let whole = model(&["▁a", "▁", "a"], &bpe(), &plain());
    for end in 0..whole.len() {
        // If the cut is between two messages, the file is a valid model with less content.
        _ = open("tokenizer.model", &whole[..end]);
    }
    let fails = |proto: Proto| open("tokenizer.model", &proto.0).unwrap_err().to_string();
    let field = || Proto::default().varint(1 << 3 | 2);
    for length in [1, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
        let error = fails(field().varint(length));
        assert!(error.contains("a field of the SentencePiece model"), "{error}");
    }
    assert!(fails(Proto(vec![0xFF; 11])).contains("a number has more than ten bytes"));
    for wire in [3, 4, 6, 7] {
        assert!(fails(Proto::default().varint(1 << 3 | wire)).contains("a field has an unknown wire type"));
    }
    assert!(fails(Proto::default().number(0, 1)).contains("a field has the number 0"));
    assert!(fails(Proto::default().number(1, 1)).contains("should be a message"));
    assert!(fails(Proto::default().bytes(1, &[0x0A, 1, 0xFF])).contains("a piece is not UTF-8"));
    assert!(fails(Proto::default().bytes(1, &Proto::default().number(1, 1).0)).contains("should be text"));
    assert!(
        fails(Proto::default().bytes(1, &Proto::default().number(2, 1).0))
            .contains("a score is not a number")
    );
    assert!(
        fails(Proto::default().bytes(2, &Proto::default().bytes(3, b"").0)).contains("should be a number")
    );
    assert!(open("tokenizer.model", b"").is_err());
}

// ---- tokenizer.json -----------------------------------------------------------------------------------------------

/// Builds a small `tokenizer.json` in the style of Llama 2.
fn document() -> Value {
    let mut vocabulary: serde_json::Map<String, Value> = ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab"]
        .iter()
        .zip(0..)
        .map(|(t, n)| ((*t).into(), json!(n)))
        .collect();
    vocabulary.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 7))));
    let added = |id: u32, text: &str| {
        json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    json!({
        "version": "1.0", "truncation": { "max_length": 1 }, "padding": null,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>")],
        "normalizer": null,
        "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": [["a", "b"], ["▁", "a"]],
        },
    })
}

fn from_json(document: &Value) -> Result<Tokenizer, TokenizerError> {
    open("tokenizer.json", document.to_string().as_bytes())
}

/// Opens the document after replacing the value at the JSON pointer `pointer` with `value`.
fn changed(pointer: &str, value: Value) -> Result<Tokenizer, TokenizerError> {
    let mut document = document();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        object => object[key] = value,
    }
    from_json(&document)
}

fn refused(pointer: &str, value: Value) -> String {
    changed(pointer, value).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn reads_a_handmade_document() {
    let t = from_json(&document()).unwrap();
    assert_eq!(t.encode("ab a", true).unwrap(), [1, 2, 6, 5], "truncation settings are ignored");
    assert_eq!(
        t.encode_with_control("a<s>a", false).unwrap(),
        [5, 1, 3],
        "only the start of a text gets a space"
    );
    assert_eq!(t.decode(&[1, 5, 7 + 0x21]), "a!");
    // In older files, the normalizer adds the space, and added tokens are matched in the normalised text.
    let mut older = document();
    older["pre_tokenizer"] = Value::Null;
    older["model"]["merges"] = json!(["a b", "▁ a"]);
    older["normalizer"] = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "▁" },
        { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
    ] });
    let t = from_json(&older).unwrap();
    assert_eq!(t.encode_with_control("a<s>a", false).unwrap(), [5, 1, 5]);
    // The ids may have gaps.
    let t = changed("/added_tokens/1/id", json!(1)).unwrap();
    assert_eq!(t.vocabulary_size(), 263);
}

/// Checks that documents with every supported component yield the same ids as the `tokenizers` library.
#[test]
fn documents_give_the_ids_of_the_library() {
    let sequence = |list: &str, parts: Value| json!({ "type": "Sequence", list: parts });
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split });
    let without = |texts: &[&str]| {
        let mut vocabulary = document()["model"]["vocab"].take();
        texts.iter().for_each(|text| _ = vocabulary.as_object_mut().unwrap().remove(*text));
        vocabulary
    };
    let cut = |regex: &str, behavior: &str, invert: bool| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": behavior, "invert": invert });
    let variants: Vec<Vec<(&str, Value)>> = vec![
        vec![],
        vec![("/normalizer", json!({ "type": "NFC" }))],
        vec![("/normalizer", sequence("normalizers", json!([{ "type": "NFC" }, replace])))],
        vec![
            ("/normalizer", sequence("normalizers", json!([prepend, replace]))),
            ("/pre_tokenizer", Value::Null),
        ],
        vec![
            ("/normalizer", sequence("normalizers", json!([prepend, replace]))),
            ("/pre_tokenizer", Value::Null),
            ("/added_tokens/1/normalized", json!(true)),
        ],
        vec![("/pre_tokenizer", metaspace("always", true))],
        vec![("/pre_tokenizer", metaspace("never", true))],
        vec![("/pre_tokenizer", metaspace("first", true)), ("/added_tokens/1/lstrip", json!(true))],
        vec![("/added_tokens/1/rstrip", json!(true)), ("/added_tokens/1/lstrip", json!(true))],
        vec![("/pre_tokenizer", json!({ "type": "Digits", "individual_digits": true }))],
        vec![("/pre_tokenizer", json!({ "type": "Punctuation", "behavior": "Contiguous" }))],
        vec![("/pre_tokenizer", json!({ "type": "Digits", "individual_digits": false }))],
        vec![(
            "/pre_tokenizer",
            sequence("pretokenizers", json!([cut("a+", "Isolated", false), metaspace("first", false)])),
        )],
        vec![("/pre_tokenizer", cut("a+| ", "Removed", false))],
        vec![("/pre_tokenizer", cut("[ab]+", "MergedWithPrevious", true))],
        vec![(
            "/pre_tokenizer",
            json!({ "type": "Split", "pattern": { "String": "b" }, "behavior": "MergedWithNext", "invert": false }),
        )],
        vec![("/model/ignore_merges", json!(true)), ("/pre_tokenizer", metaspace("always", true))],
        vec![("/model/byte_fallback", json!(false)), ("/model/unk_token", json!("<unk>"))],
        vec![
            ("/model/byte_fallback", json!(false)),
            ("/model/unk_token", json!("<unk>")),
            ("/model/fuse_unk", json!(false)),
        ],
        vec![("/added_tokens/1/single_word", json!(true))],
        vec![("/added_tokens/1/single_word", json!(true)), ("/added_tokens/1/rstrip", json!(true))],
        // Characters and bytes without tokens.
        vec![("/model/byte_fallback", json!(false))],
        vec![("/model/vocab", without(&["<0xE2>", "<0x0A>", "b", "ab"])), ("/model/merges", json!([]))],
        vec![("/model/vocab", without(&["<0xE2>"])), ("/model/unk_token", json!("<unk>"))],
        vec![
            ("/model/byte_fallback", json!(false)),
            (
                "/pre_tokenizer",
                json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }),
            ),
        ],
    ];
    let texts = [
        "",
        " ",
        "a",
        " a",
        "ab  a b",
        "a<s>a",
        "a <s> b",
        "<s>",
        "e\u{301} é",
        "12a 3",
        "aab ba",
        "x\n€",
        "aba€b",
        "a€bx<s>_ é<s>!<s>",
        "▁a",
        "<unk>",
    ];
    for variant in variants {
        let mut document = document();
        document["truncation"] = Value::Null;
        for (pointer, value) in &variant {
            *document.pointer_mut(pointer).unwrap() = value.clone();
        }
        let ours = from_json(&document).unwrap();
        let mut library: tokenizers::Tokenizer = document.to_string().parse().unwrap();
        for text in texts {
            let theirs = library.encode(text, true).unwrap();
            assert_eq!(
                ours.encode_with_control(text, true).unwrap(),
                theirs.get_ids(),
                "{variant:?}: {text:?}"
            );
            library.set_encode_special_tokens(true);
            let theirs = library.encode(text, true).unwrap();
            assert_eq!(ours.encode(text, true).unwrap(), theirs.get_ids(), "{variant:?}: {text:?}");
            library.set_encode_special_tokens(false);
        }
    }
}

#[test]
fn errors_name_unsupported_parts() {
    let unknown = |pointer: &str, kind: &str| {
        let error = refused(pointer, json!({ "type": kind }));
        assert!(error.contains(&format!("unknown variant `{kind}`, expected")), "{error}");
    };
    unknown("/normalizer", "Lowercase");
    unknown("/pre_tokenizer", "UnicodeScripts");
    unknown("/decoder", "WordPiece");
    unknown("/post_processor", "BertProcessing");
    for kind in ["WordPiece", "WordLevel", "\u{1b}"] {
        assert!(refused("/model/type", json!(kind)).contains("not supported: a tokenizer of type"));
    }
    for (pointer, value, words) in [
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/continuing_subword_prefix", json!("##"), "affixes of subwords"),
        ("/model/end_of_word_suffix", json!("</w>"), "affixes of subwords"),
        ("/decoder", Value::Null, "without a decoder"),
        ("/decoder", json!({ "type": "Strip", "content": "x", "start": 1, "stop": 0 }), "strips other than"),
        (
            "/decoder",
            json!({ "type": "Replace", "pattern": { "String": "x" }, "content": "y" }),
            "replaces other",
        ),
        (
            "/decoder",
            json!({ "type": "Sequence", "decoders": [{ "type": "ByteLevel" }, { "type": "ByteFallback" }] }),
            "a byte-level decoder combined with others",
        ),
        (
            "/pre_tokenizer",
            json!({ "type": "Metaspace", "replacement": "_" }),
            "\"_\" for the space, instead of ▁",
        ),
        (
            "/normalizer",
            json!({ "type": "Replace", "pattern": { "Regex": "x" }, "content": "" }),
            "by expressions",
        ),
        (
            "/normalizer",
            json!({ "type": "Replace", "pattern": { "String": "x" }, "content": "x".repeat(9) }),
            "much longer",
        ),
        (
            "/normalizer",
            json!({ "type": "Replace", "pattern": { "String": "" }, "content": "" }),
            "much longer",
        ),
        ("/normalizer", json!({ "type": "Prepend", "prepend": "x".repeat(99) }), "prepends a long text"),
        (
            "/normalizer",
            json!({ "type": "Sequence", "normalizers": vec![json!({ "type": "NFC" }); 5] }),
            "more than 4",
        ),
        (
            "/pre_tokenizer",
            json!({ "type": "Sequence", "pretokenizers": vec![json!({ "type": "Digits" }); 17] }),
            "more than 16",
        ),
        ("/post_processor/single", json!([]), "a template with 0 texts"),
    ] {
        let error = refused(pointer, value);
        assert!(error.contains("not supported") && error.contains(words), "{pointer}: {error}");
    }
}

/// Builds a small `tokenizer.json` of type Unigram.
fn unigram(vocabulary: &Value, unknown: &Value) -> Result<Tokenizer, TokenizerError> {
    let mut document = document();
    document["model"] = json!({ "type": "Unigram", "unk_id": unknown, "vocab": vocabulary });
    from_json(&document)
}

#[test]
fn reads_a_handmade_unigram_vocabulary() {
    let vocabulary =
        json!([["<unk>", 0], ["<s>", 0], ["▁", -3], ["a", -2.5], ["▁a", -3.5], ["b", -2], ["ab", -4]]);
    let t = unigram(&vocabulary, &json!(0)).unwrap();
    assert_eq!(t.encode("ab xx a", true).unwrap(), [1, 4, 5, 2, 0, 4]);
    assert_eq!(t.decode(&[1, 4, 5]), "ab");
    // Unigram is the default type of a `tokenizer.model`.
    let bytes = model(&["▁a", "▁", "a", "b"], &Proto::default(), &plain());
    let t = open("tokenizer.model", &bytes).unwrap();
    assert_eq!(t.encode("ab  ac", true).unwrap(), [1, 3, 6, 4, 3, 0]);
}

#[test]
fn rejects_invalid_unigram_vocabularies() {
    for (vocabulary, unknown, words) in [
        (json!([["<unk>", 0], ["<s>", 0]]), Value::Null, "neither all byte tokens nor an unknown token"),
        (json!([["<unk>", 0], ["<s>", 0]]), json!(2), "has 2 tokens, but unk_id is 2"),
        (json!([["<unk>", 0], ["<s>"]]), json!(0), "invalid length"),
        (json!([["<unk>", 0], ["<s>", "x"]]), json!(0), "invalid type"),
        (json!({ "<unk>": 0 }), json!(0), "invalid type"),
        (json!([["<unk>", 0], ["<s>", 0], ["x".repeat(513), 0]]), json!(0), "a token of 513 bytes"),
    ] {
        let error = unigram(&vocabulary, &unknown).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    for map in ["", "AAA", "####", "/wAAAA=="] {
        let error = refused("/normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": map }));
        assert!(error.contains("has a character map: "), "{error}");
    }
}

/// Checks that a vocabulary that matches at every position takes time in proportion to the text.
#[test]
fn a_unigram_vocabulary_of_repetitions_is_bounded() {
    let mut vocabulary = vec![json!(["<unk>", 0]), json!(["<s>", 0])];
    vocabulary.extend((1..=512).map(|length| json!(["a".repeat(length), -(length as f64)])));
    let t = unigram(&json!(vocabulary), &json!(0)).unwrap();
    let ids = t.encode(&"a".repeat(20_000), false).unwrap();
    assert!(ids.len() >= 20_000 / 512 && ids.len() <= 20_001);
}

#[test]
fn rejects_inconsistent_documents() {
    for (pointer, value, words) in [
        (
            "/model/vocab/ab",
            json!(4_294_967_295u32),
            "has the id 4294967295 for \"ab\", but far fewer tokens",
        ),
        ("/model/vocab/ab", json!(5), "gives the id 5 to"),
        ("/model/vocab/ab", json!(-1), "invalid value"),
        ("/model/vocab/ab", json!("6"), "invalid type"),
        ("/model/merges", json!([["a", "zz"]]), "has invalid merges"),
        ("/model/merges", json!(["ab"]), "which is not two tokens"),
        ("/model/merges", json!(["a b c"]), "which is not two tokens"),
        ("/model/merges", json!([["a"]]), "data did not match"),
        ("/model/unk_token", json!("<none>"), "has no token \"<none>\", which unk_token names"),
        ("/added_tokens/0/id", json!(3), "gives the id 3 to \"<unk>\" and another"),
        ("/added_tokens/0/content", json!("new"), "gives the id 0 to \"new\" and another"),
        ("/added_tokens/0/id", json!(4_000_000_000u32), "gives the id 4000000000 to \"<unk>\" and another"),
        ("/post_processor/special_tokens", json!({}), "a template with an unknown token"),
        (
            "/pre_tokenizer",
            json!({ "type": "Split", "pattern": { "Regex": "(" }, "behavior": "Isolated" }),
            "an invalid expression",
        ),
        ("/model", json!([]), "invalid"),
        ("/model/vocab", json!([]), "invalid type"),
    ] {
        let error = refused(pointer, value);
        assert!(error.starts_with("d") && error.contains(words), "{pointer}: {error}");
    }
}

#[test]
fn template_tokens_are_limited() {
    const MOST: usize = 64;
    let template = |tokens: usize| {
        let mut single = vec![json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } }); tokens];
        single.push(json!({ "Sequence": { "id": "A", "type_id": 0 } }));
        changed("/post_processor/single", json!(single))
    };
    let most = template(MOST).unwrap().encode("a", true).unwrap();
    assert_eq!((most.len(), &most[MOST - 1..]), (MOST + 1, &[1, 5][..]));
    assert!(template(MOST + 1).map(|_| ()).unwrap_err().to_string().contains("more than 64 tokens"));
}

#[test]
fn metaspace_decoder_turns_the_marker_into_spaces() {
    let decoder = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" });
    let t = changed("/decoder", decoder).unwrap();
    assert_eq!(t.decode(&[5, 2, 3]), "a a");
}

#[test]
fn ids_reach_up_to_twice_the_number_of_tokens() {
    // The vocabulary has 263 tokens, and 2 tokens are added.
    assert_eq!(changed("/model/vocab/ab", json!(529)).unwrap().vocabulary_size(), 530);
    assert!(refused("/model/vocab/ab", json!(530)).contains("far fewer tokens"));
}

#[test]
fn replacements_lengthen_a_text_at_most_fourfold() {
    let replace =
        |content: &str| json!({ "type": "Replace", "pattern": { "String": "ab" }, "content": content });
    assert!(changed("/normalizer", replace(&"a".repeat(8))).is_ok());
    assert!(refused("/normalizer", replace(&"a".repeat(9))).contains("much longer texts"));
}

/// Checks that Ragtag rejects regular expressions that would expand to gigabytes, and that encoding fails if
/// matching an expression takes exponential time.
#[test]
fn expressions_are_bounded() {
    let split = |regex: String| {
        changed(
            "/pre_tokenizer",
            json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated" }),
        )
    };
    for bomb in ["((?=a){1000}){1000}", "(?:(?:\\p{L}{500}){500}){500}", "((((a{99}){99}){99}){99}){99}"] {
        let error = split(bomb.to_owned()).unwrap_err().to_string();
        assert!(error.contains("an expression this large"), "{error}");
    }
    assert!(split("a".repeat(5000)).is_err());
    let t = split("(a+a+)+(?=b)".to_owned()).unwrap();
    assert!(t.encode("aab", false).is_ok());
    let error = t.encode(&"a".repeat(300), false).unwrap_err().to_string();
    assert!(error.contains("backtracking"), "{error}");
}

/// Checks that encoding fails for a run of whitespace that exceeds the regex engine's limit of one million
/// characters. The words after the run must not be dropped silently.
#[test]
fn a_text_beyond_the_limits_of_an_expression_is_an_error() {
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true });
    for cut in [
        byte_level,
        json!({ "type": "Split", "pattern": { "Regex": "\\s+(?!\\S)|\\S+" }, "behavior": "Removed", "invert": true }),
    ] {
        let t = changed("/pre_tokenizer", cut).unwrap();
        let text = |spaces: usize| format!("a{} a", " ".repeat(spaces));
        assert!(t.encode(&text(10), false).is_ok());
        let error = t.encode(&text(1_000_000), false).unwrap_err().to_string();
        assert!(error.contains("stack size"), "{error}");
    }
}

#[test]
fn rejects_truncated_and_deeply_nested_documents() {
    let whole = document().to_string();
    for end in (0..whole.len()).step_by(7) {
        assert!(open("tokenizer.json", &whole.as_bytes()[..end]).is_err());
    }
    for bytes in [&b"\xff"[..], b"[]", b"null", b"{}", b"{\"model\":{}}", b"{\"model\":{\"type\":\"BPE\"}}"] {
        assert!(open("tokenizer.json", bytes).is_err());
    }
    for part in ["normalizer", "pre_tokenizer", "decoder", "post_processor"] {
        let mut text = document();
        text[part] = json!("HERE");
        let (list, depth) = match part {
            "normalizer" => ("normalizers", 1000),
            "pre_tokenizer" => ("pretokenizers", 100_000),
            "decoder" => ("decoders", 1000),
            _ => ("processors", 1000),
        };
        let open_part = format!("{{\"type\":\"Sequence\",\"{list}\":[").repeat(depth);
        let nested = text.to_string().replace("\"HERE\"", &format!("{open_part}{}", "]}".repeat(depth)));
        let error = open("tokenizer.json", nested.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("recursion limit exceeded"), "{error}");
    }
}

/// An end token that `tokenizer.json` does not call special is a control token. Ordinary tokens with such texts are
/// not end tokens.
#[test]
fn added_tokens_with_known_texts_end_a_turn() {
    let mut text = document();
    let added = |id: u32, text: &str| json!({ "id": id, "content": text, "special": false });
    for token in [added(263, "<|im_end|>"), added(264, "<fim_prefix>"), added(265, "<tool_call>")] {
        text["added_tokens"].as_array_mut().unwrap().push(token);
    }
    text["model"]["vocab"]["<eos>"] = json!(266);
    let text = text.to_string();
    let t = Tokenizer::from_directory(&directory(&[("tokenizer.json", text.as_bytes())])).unwrap();
    assert_eq!(*t.eos(), [263].into());
    assert_eq!(t.decode(&[263, 265]), "<tool_call>");
    assert_eq!(t.encode_with_control("<|im_end|><fim_prefix>", false).unwrap(), [263, 264]);
    let literal = t.encode("<|im_end|><fim_prefix>", false).unwrap();
    assert!(!literal.contains(&263) && literal.ends_with(&[264]), "{literal:?}");
}

/// Checks that ids of tokens that the vocabulary lacks count as missing. Converters write -1 for "none".
#[test]
fn special_tokens_outside_the_vocabulary_count_as_missing() {
    let document = document().to_string();
    let with = |name: &'static str, json: &'static str| {
        let files = [("tokenizer.json", document.as_bytes()), (name, json.as_bytes())];
        Tokenizer::from_directory(&directory(&files))
    };
    let ends = |name, json| with(name, json).map(|t| t.eos().iter().copied().collect::<Vec<_>>());
    for (json, expected) in [
        (r#"{"eos_token_id": [1, 3]}"#, &[1, 3][..]),
        (r#"{"eos_token_id": 2, "bos_token_id": 263}"#, &[2]),
        (r#"{"eos_token_id": [1, 128009], "bos_token_id": null}"#, &[1]),
        (r#"{"eos_token_id": [1, null, -1, 4294967295, 18446744073709551615]}"#, &[1]),
        (r#"{"eos_token_id": -1}"#, &[]),
        (r#"{"eos_token_id": null}"#, &[]),
    ] {
        for name in ["config.json", "generation_config.json"] {
            assert_eq!(ends(name, json).unwrap(), expected, "{name}: {json}");
        }
    }
    let old = r#"{"eos_token": {"content": "ab"}}"#;
    assert_eq!(ends("special_tokens_map.json", old).unwrap(), [6]);
    assert_eq!(ends("special_tokens_map.json", r#"{"eos_token": "of another"}"#).unwrap(), [0u32; 0]);
    let config = r#"{"bos_token": "<none>", "eos_token": null, "add_bos_token": null, "unk_token": null}"#;
    assert_eq!(with("tokenizer_config.json", config).unwrap().encode("", true).unwrap(), [1]);
    let template = changed("/post_processor/special_tokens/<s>/ids", json!([70_000, 2])).unwrap();
    assert_eq!(template.encode("", true).unwrap(), [2]);
    let fails = |name, json| ends(name, json).unwrap_err().to_string();
    for wrong in [r#"{"eos_token_id": "</s>"}"#, r#"{"eos_token_id": [[1]]}"#, r#"{"eos_token_id": 1.5}"#] {
        let error = fails("generation_config.json", wrong);
        assert!(error.contains("eos_token_id should be a token id or a list of them"), "{error}");
    }
    assert!(fails("tokenizer_config.json", "{\"add_bos_token\": 1}").contains("should be true or false"));
    assert!(fails("tokenizer_config.json", "[]").contains("d/tokenizer_config.json"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_change_of_a_model_is_an_error_or_harmless(at in any::<usize>(), byte in any::<u8>(), text in "[ab é▁]{0,12}") {
        let mut bytes = model(&["▁a", "▁", "a", "b"], &bpe(), &plain());
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(t) = open("tokenizer.model", &bytes) {
            let ids = t.encode(&text, true).unwrap();
            prop_assert!(ids.iter().all(|id| (*id as usize) < t.vocabulary_size()));
        }
    }

    #[test]
    fn any_text_survives_a_round_trip(text in any::<String>()) {
        let t = from_json(&document()).unwrap();
        let shown = text.replace('▁', " ");
        // If a text starts with a space, the library adds no further space, but its decoder still removes
        // one.
        let shown = shown.strip_prefix(' ').unwrap_or(&shown);
        prop_assert_eq!(t.decode(&t.encode(&text, false).unwrap()), shown);
    }
}
