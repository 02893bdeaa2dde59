//! Compares the tokenizers of a model directory with recorded results. `data/tiny-hf.json` contains the
//! output of the Python packages `sentencepiece` 0.2 and `tokenizers` 0.23 for the files in
//! `tests/support/golden/tiny-hf`.

use ragtag_graph::{Directory, MemorySource, Model, Tokenizer, checkpoint};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Deserialize)]
struct Data {
    texts: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    /// Ids from `tokenizer.model`.
    sentencepiece: Vec<u32>,
    /// Ids from `tokenizer.json`, with special tokens treated as text.
    tokenizers: Vec<u32>,
    /// Ids from `tokenizer.json`, with special tokens recognized and added.
    with_control: Vec<u32>,
}

fn data() -> Data {
    serde_json::from_str(include_str!("data/tiny-hf.json")).unwrap()
}

fn folder() -> PathBuf {
    test_support::golden("tiny-hf")
}

/// Returns the `tiny-hf` directory without the files in `without`.
fn directory(without: &[&str]) -> Directory {
    let mut directory = Directory::new("tiny-hf");
    let add = |directory: &mut Directory, name: &str| {
        let path = folder().join(name);
        if path.exists() && !without.contains(&name) {
            let source = MemorySource::new(format!("tiny-hf/{name}"), std::fs::read(path).unwrap());
            directory.insert(name, Arc::new(source));
        }
    };
    checkpoint::FILES.iter().for_each(|name| add(&mut directory, name));
    checkpoint::shard_names(&directory).unwrap().iter().for_each(|name| add(&mut directory, name));
    directory
}

fn tokenizer(without: &[&str]) -> Tokenizer {
    Tokenizer::from_directory(&directory(without)).unwrap()
}

#[test]
fn both_files_match_their_own_libraries() {
    let (json, model) = (tokenizer(&["tokenizer.model"]), tokenizer(&["tokenizer.json"]));
    let texts = data().texts;
    assert!(texts.len() > 60);
    let mut same = 0;
    for case in &texts {
        let text = case.text.as_str();
        assert_eq!(json.encode(text, false).unwrap(), case.tokenizers, "{text:?}");
        assert_eq!(json.encode_with_control(text, true).unwrap(), case.with_control, "{text:?}");
        assert_eq!(model.encode(text, false).unwrap(), case.sentencepiece, "{text:?}");
        for tokenizer in [&json, &model] {
            let with_bos = tokenizer.encode(text, true).unwrap();
            assert_eq!((with_bos[0], &with_bos[1..]), (1, &tokenizer.encode(text, false).unwrap()[..]));
            assert_eq!(tokenizer.eos().iter().copied().collect::<Vec<_>>(), [2]);
            assert_eq!((tokenizer.bos(), tokenizer.vocabulary_size()), (Some(1), 4096));
        }
        // The ids differ only for texts that start with a space, because `tokenizers` adds no second space.
        let begins_with_space = text.starts_with([' ', '▁']);
        assert_eq!(case.sentencepiece == case.tokenizers, !begins_with_space, "{text:?}");
        same += u32::from(!begins_with_space);
        let shown = text.replace('▁', " ");
        assert_eq!(model.decode(&case.sentencepiece), shown);
        let shown = if begins_with_space { &shown[1..] } else { &shown };
        assert_eq!(json.decode(&case.tokenizers), shown);
    }
    assert!(same > 60, "{same}");
}

/// Checks that `tokenizer.model` and `tokenizer.json` yield the same ids for a long text.
#[test]
fn a_tale_has_the_same_ids_by_either_file() {
    let tale = std::fs::read_to_string(folder().join("../held.txt")).unwrap();
    let ids = tokenizer(&["tokenizer.json"]).encode(&tale, false).unwrap();
    assert_eq!(ids.len(), 10378);
    assert_eq!(tokenizer(&["tokenizer.model"]).encode(&tale, false).unwrap(), ids);
}

#[test]
fn tokenizer_json_takes_precedence_and_one_file_is_required() {
    let both = tokenizer(&[]);
    assert_eq!(
        both.encode(" a", false).unwrap(),
        tokenizer(&["tokenizer.model"]).encode(" a", false).unwrap()
    );
    let none = Tokenizer::from_directory(&directory(&["tokenizer.model", "tokenizer.json"])).unwrap_err();
    assert_eq!(none.to_string(), "tiny-hf has no tokenizer.json and no tokenizer.model");
    // A model opens even if its directory has no tokenizer.
    let model = Model::from_directory(directory(&["tokenizer.model", "tokenizer.json"])).unwrap();
    assert_eq!(model.weights().tensors().len(), 38);
    assert!(model.tokenizer().is_err());
    assert!(model.metadata().is_none());
}

#[test]
fn tokenizer_uses_its_own_special_tokens_without_the_small_files() {
    let small = ["tokenizer_config.json", "generation_config.json"];
    for file in ["tokenizer.model", "tokenizer.json"] {
        let t = tokenizer(&[&small[..], &[file]].concat());
        assert_eq!((t.bos(), t.encode("", true).unwrap()), (Some(1), vec![1]), "without {file}");
        assert_eq!(t.eos().iter().copied().collect::<Vec<_>>(), [2], "config.json names it");
    }
}
