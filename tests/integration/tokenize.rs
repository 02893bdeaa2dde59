//! Tests of `ragtag tokenize`: ids, pieces and texts, and the forms of its input.

use crate::support::{checkpoint, golden, model_path, put_metadata, ragtag, text};
use ragtag_graph::gguf::Writer;
use serde_json::Value;

/// Runs `ragtag tokenize` with `input` on standard input. Returns the exit code, standard output and standard error.
fn run(arguments: &[&str], input: &str) -> (i32, String, String) {
    let output = ragtag().arg("tokenize").args(arguments).write_stdin(input).output().unwrap();
    let decoded = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), decoded(output.stdout), decoded(output.stderr))
}

fn shown(arguments: &[&str], input: &str) -> String {
    let (code, out, errors) = run(arguments, input);
    assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
    out
}

#[track_caller]
fn refused(arguments: &[&str], code: i32, part: &str) {
    let (found, out, errors) = run(arguments, "");
    assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {errors}");
    assert!(errors.contains(part), "{arguments:?}: {errors}");
}

fn joined(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn tokens_are_those_of_the_reference_in_every_form_of_input() {
    let model = model_path("tales-q8_0");
    let (model, case) = (text(&model), &golden("tales-q8_0").cases[0]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.txt");
    std::fs::write(&path, case.prompt.clone() + "\n").unwrap();
    let expected = joined(&case.prompt_ids) + "\n";
    for (arguments, input) in [
        (&[model, &case.prompt][..], ""),
        (&[model, "-f", text(&path)], ""),
        (&[model], case.prompt.as_str()),
        (&["-m", model, &case.prompt], ""),
        (&["--model", model, "-p", &case.prompt], ""),
        // All models have the same vocabulary.
        (&[], &case.prompt),
    ] {
        assert_eq!(shown(&[arguments, &["--ids"]].concat(), input), expected, "{arguments:?}");
    }
    let ids = joined(&case.prompt_ids);
    assert_eq!(shown(&[model, "--decode", &ids], ""), case.prompt.clone() + "\n");
    let json: Value = serde_json::from_str(&shown(&[model, "--decode", &ids, "--json"], "")).unwrap();
    assert_eq!(json["text"], case.prompt.as_str());
}

#[test]
fn pieces_and_their_texts_are_shown() {
    let json: Value = serde_json::from_str(&shown(&["--json"], "Once ж")).unwrap();
    let tokens = json["tokens"].as_array().unwrap();
    let texts: Vec<_> = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(texts.concat(), "Once ж");
    assert_eq!((&tokens[0]["piece"], &tokens[0]["text"]), (&"<s>".into(), &"".into()));
    let table = shown(&[], "Once ж");
    assert!(table.starts_with("|") && table.contains(" piece ") && table.contains("\"Once\""), "{table}");
}

#[test]
fn control_tokens_and_bos_are_options() {
    let ids = |options: &[&str]| shown(&[&["--ids"], options].concat(), "<s>a");
    let plain = ids(&["--no-bos", "--no-special"]);
    assert_eq!(ids(&["--no-special"]), format!("1,{plain}"));
    // As in `run`, a prompt that begins with BOS gets no second one.
    assert_eq!(ids(&[]), ids(&["--no-bos"]));
    assert!(ids(&[]).starts_with("1,") && !plain.starts_with("1,"), "{plain}");
}

#[test]
fn a_vocabulary_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    let (mut writer, model) = (Writer::new(), ragtag::Model::open(model_path("tales-q8_0")).unwrap());
    put_metadata(&mut writer, &model);
    std::fs::write(&path, writer.header()).unwrap();
    assert_eq!(shown(&[text(&path), "--ids"], "a wolf"), shown(&["--ids"], "a wolf"));
    let files = ["tokenizer.json", "tokenizer_config.json"];
    for file in files {
        std::fs::copy(checkpoint().join(file), folder.path().join(file)).unwrap();
    }
    let directory = |path| shown(&[text(path), "--ids"], "a wolf");
    assert_eq!(directory(folder.path()), directory(&checkpoint()));
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    refused(&[text(folder.path()), "a"], 3, "tokenizer.json");
    refused(&["missing.gguf", "a"], 7, "cannot read missing.gguf");
    refused(&["-m", "a.gguf", "b.gguf", "text"], 2, "more than one model");
    refused(&["a.gguf", "text", "-f", "file"], 2, "TEXT cannot be used with -p, -f or --decode");
    refused(&["--decode", "4096"], 2, "no token 4096; the vocabulary has 4096 tokens");
    refused(&["--decode", "x"], 2, "invalid value");
    refused(&["--ids", "--json"], 2, "cannot be used with");
}
