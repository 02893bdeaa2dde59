//! Tests of grammars: accepted and refused texts, generated texts, and hostile grammars.

use super::*;
use crate::model::Model;
use std::time::{Duration, Instant};

fn tokenizer() -> Tokenizer {
    Model::bundled().unwrap().tokenizer().unwrap().clone()
}

/// State of a text under a grammar.
#[derive(Debug, PartialEq)]
enum Text {
    /// The text is complete, and nothing may follow.
    Done,
    /// The text is complete, and more may follow.
    Complete,
    /// More must follow.
    Begun,
    /// The grammar refuses this many bytes at the end of the text.
    Refused(usize),
}

/// Feeds `text` to a mask, in the longest tokens, or in the shortest ones.
fn feed(tokenizer: &Tokenizer, grammar: &CompiledGrammar, text: &str, longest: bool) -> Text {
    let mut mask = grammar.mask();
    let count = tokenizer.vocabulary_size() as u32;
    let mut rest = text.as_bytes();
    let allowed = |mask: &mut Box<dyn TokenMask>| {
        let mut logits = vec![0.0; count as usize];
        mask.restrict(&mut logits).unwrap();
        logits
    };
    while !rest.is_empty() {
        let logits = allowed(&mut mask);
        let begins = |id: &u32| {
            let bytes = tokenizer.bytes(*id).filter(|bytes| !bytes.is_empty() && rest.starts_with(bytes));
            Some(bytes?.len()).filter(|_| logits[*id as usize] == 0.0)
        };
        let fitting = (0..count).filter_map(|id| Some((begins(&id)?, id)));
        let Some((bytes, id)) = (if longest { fitting.max() } else { fitting.min() }) else {
            return Text::Refused(rest.len());
        };
        rest = &rest[bytes..];
        if mask.accept(id).unwrap() {
            return if rest.is_empty() { Text::Done } else { Text::Refused(rest.len()) };
        }
    }
    let logits = allowed(&mut mask);
    match tokenizer.eos().iter().any(|end| logits[*end as usize] == 0.0) {
        true => Text::Complete,
        false => Text::Begun,
    }
}

#[track_caller]
fn check(grammar: &Grammar, cases: &[(&str, Text)]) {
    let tokenizer = tokenizer();
    let compiled = GrammarCompiler::new(&tokenizer).unwrap().compile(grammar).unwrap();
    for (text, expected) in cases {
        assert_eq!(feed(&tokenizer, &compiled, text, true), *expected, "{text:?}");
        assert_eq!(feed(&tokenizer, &compiled, text, false), *expected, "{text:?} in short tokens");
    }
}

#[test]
fn json_is_valid_for_its_schema_with_bounded_white_space() {
    let schema = json!({
        "type": "object",
        "properties": { "zip": { "type": "integer" }, "city": { "$ref": "#/$defs/city" } },
        "required": ["zip", "city"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Rome", "Oslo"] } },
        "x-guidance": { "whitespace_pattern": "\\s+" },
    });
    check(
        &Grammar::JsonSchema(schema),
        &[
            (r#"{"zip":12,"city":"Rome"}"#, Text::Done),
            ("{\n  \"zip\": 12,\n  \"city\": \"Oslo\"\n}", Text::Done),
            (r#"{"zip":12,"city":"#, Text::Begun),
            (r#"{"city":"Rome","zip":12}"#, Text::Refused(22)),
            (r#"{"zip":1.5}"#, Text::Refused(3)),
            ("{   \"zip\"", Text::Refused(7)),
            ("{\n\n\n", Text::Refused(1)),
            (" {", Text::Refused(2)),
        ],
    );
}

#[test]
fn dates_and_times_exist() {
    let schema = json!({
        "type": "object",
        "properties": {
            "date": { "type": "string", "format": "date" },
            "any": { "anyOf": [{ "type": "string", "format": "time" }, { "const": { "format": "time" } }] },
            "at": { "type": "string", "format": "date-time", "maxLength": 20 },
        },
        "required": ["date", "any", "at"],
    });
    let refused = |rest: &str| Text::Refused(rest.len());
    check(
        &Grammar::JsonSchema(schema),
        &[
            (r#"{"date":"2024-02-29","any":"23:59:59.5+01:30","at":"2000-02-29T00:00:00Z"}"#, Text::Done),
            (r#"{"date":"1900-02-28","any":{"format":"time"},"at":"1999-12-31t23:59:59z"}"#, Text::Done),
            (r#"{"date":"2023-02-29"#, refused("9")),
            (r#"{"date":"1900-02-29"#, refused("9")),
            (r#"{"date":"2023-04-31"#, refused("1")),
            (r#"{"date":"2023-04-30","any":"23:59:60"#, refused("60")),
            (r#"{"date":"2023-04-30","any":"23:59:59Z","at":"2000-02-29T00:00:00.5"#, refused(".5")),
        ],
    );
}

#[test]
fn regular_expressions_match_whole_texts() {
    check(
        &Grammar::Regex(r"[a-c]+/\d{2}".into()),
        &[
            ("abc/12", Text::Done),
            ("a/1", Text::Begun),
            ("abd", Text::Refused(1)),
            ("a/123", Text::Refused(1)),
        ],
    );
    check(&Grammar::Regex("yes|no thanks".into()), &[("no", Text::Begun), ("yes", Text::Done)]);
    check(&Grammar::Regex("a+".into()), &[("aa", Text::Complete)]);
}

#[test]
fn gbnf_works_on_characters() {
    let grammar = "root ::= (\"a\" | \"ab\") \"bc\" tail?\ntail ::= [^\\n\"]{2} | \"é\" .";
    check(
        &Grammar::Gbnf(grammar.into()),
        &[
            ("abc", Text::Complete),
            ("abbc", Text::Complete),
            ("abcé\n", Text::Done),
            ("abcéé", Text::Done),
            ("abc12", Text::Done),
            ("abc\n", Text::Refused(1)),
            ("abbbc", Text::Refused(2)),
        ],
    );
    let list = "root ::= \"[\" (item (\", \" item)*)? \"]\"\nitem ::= [0-9]+ | root";
    check(&Grammar::Gbnf(list.into()), &[("[1, [23], []]", Text::Done), ("[1,2", Text::Refused(1))]);
}

#[test]
fn grammars_combine() {
    let calls = Grammar::Sequence(vec![
        Grammar::Through("</think>".into()),
        Grammar::Regex(r"\s{0,2}".into()),
        Grammar::Repeat(
            Box::new(Grammar::Choice(vec![
                Grammar::Sequence(vec![
                    Grammar::Text("<f \"x\">".into()),
                    Grammar::JsonSchema(json!({ "type": "integer" })),
                    Grammar::Text(";".into()),
                ]),
                Grammar::Lark("start: \"g\" /[0-9]/".into()),
                Grammar::Gbnf("root ::= \"h\"".into()),
            ])),
            3,
        ),
    ]);
    check(
        &calls,
        &[
            ("because </thin> {</think>\n<f \"x\">12;", Text::Complete),
            ("</think>g1hg2", Text::Done),
            ("</think>x", Text::Refused(1)),
            ("never ends", Text::Begun),
        ],
    );
}

#[test]
fn control_tokens_follow_only_where_a_grammar_has_them() {
    let tokenizer = tokenizer();
    let count = tokenizer.vocabulary_size() as u32;
    let is_control = |id: &u32| tokenizer.bytes(*id).is_none() && !tokenizer.eos().contains(id);
    let control = (0..count).find(is_control).expect("the vocabulary has control tokens");
    let text = |text: &str| Grammar::Text(text.into());
    let grammar = Grammar::Sequence(vec![text("a"), Grammar::Token(control), text("b")]);
    let mut mask = GrammarCompiler::new(&tokenizer).unwrap().compile(&grammar).unwrap().mask();
    let id_of = |text: &[u8]| (0..count).find(|id| tokenizer.bytes(*id).as_deref() == Some(text)).unwrap();
    let mut done = Vec::new();
    for token in [id_of(b"a"), control, id_of(b"b")] {
        let mut logits = vec![0.0; count as usize];
        mask.restrict(&mut logits).unwrap();
        // Several tokens may have the same bytes, but each control token differs.
        let is_same =
            |id: u32| id == token || token != control && tokenizer.bytes(id) == tokenizer.bytes(token);
        let allowed = (0..count).map(|id| logits[id as usize] == 0.0);
        assert!((0..count).map(is_same).eq(allowed), "at token {token}");
        done.push(mask.accept(token).unwrap());
    }
    assert_eq!(done, [false, false, true]);
}

#[test]
fn random_texts_are_valid_documents() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 5 },
            "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
        },
        "required": ["name", "tags"],
        "additionalProperties": false,
    });
    let tokenizer = tokenizer();
    let compiled = GrammarCompiler::new(&tokenizer).unwrap().compile(&Grammar::JsonSchema(schema)).unwrap();
    for seed in 0..20 {
        let mut random = seed_of(seed);
        let (mut mask, mut stream) = (compiled.mask(), tokenizer.stream());
        let mut text = String::new();
        let is_done = (0..500).any(|_| {
            let mut logits: Vec<f32> = (0..tokenizer.vocabulary_size()).map(|_| random()).collect();
            mask.restrict(&mut logits).unwrap();
            let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            text.push_str(&stream.push(best));
            mask.accept(best).unwrap()
        });
        assert!(is_done, "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value["name"].as_str().unwrap().chars().count() <= 5, "{text}");
        assert!(value["tags"].as_array().unwrap().iter().all(Value::is_boolean), "{text}");
    }
}

/// Returns a generator of numbers from 0 to 1.
fn seed_of(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    }
}

#[test]
fn hostile_grammars_are_refused_in_bounded_time() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let mut nested = json!({});
    for _ in 0..100 {
        nested = json!({ "items": nested });
    }
    let chain: String = (0..10_000).map(|rule| format!("r{rule}: r{}\n", rule + 1)).collect();
    let many: Vec<u32> = (0..300_000).collect();
    let cases = [
        Grammar::Gbnf(format!("root ::= {}", deep("(", ")"))),
        Grammar::Lark(format!("start: {}", deep("(\"a\"", ")"))),
        Grammar::Lark(format!("start: r0\n{chain}")),
        Grammar::Regex(deep("(a", ")")),
        Grammar::Regex("a".repeat(300_000)),
        Grammar::Gbnf(format!("root ::= {}", vec!["\"a\""; 300_000].join("|"))),
        Grammar::JsonSchema(nested),
        Grammar::JsonSchema(json!({ "enum": many })),
        Grammar::JsonSchema(json!({ "$ref": "https://example.com/schema.json" })),
        Grammar::JsonSchema(json!({ "$ref": "#/$defs/none" })),
        Grammar::JsonSchema(json!({ "type": "nothing" })),
        Grammar::JsonSchema(json!({ "type": "string", "pattern": "(" })),
        Grammar::JsonSchema(json!({ "type": "string", "format": "colour" })),
        Grammar::JsonSchema(json!(false)),
        Grammar::JsonSchema(json!({ "type": "integer", "minimum": 3, "maximum": 2 })),
        Grammar::JsonSchema(json!([])),
        Grammar::Lark("start: other".into()),
        Grammar::Lark(String::new()),
        Grammar::Regex("(".into()),
    ];
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    for grammar in cases {
        let (what, started) = (format!("{grammar:?}"), Instant::now());
        let what = what.get(..80).unwrap_or(&what);
        assert!(compiler.compile(&grammar).is_err(), "{what}");
        assert!(started.elapsed() < Duration::from_secs(60), "{what} took {:?}", started.elapsed());
    }
    // These are large, but valid: they cost little until they are used.
    for grammar in [
        Grammar::JsonSchema(json!({ "type": "array", "items": {}, "minItems": 100_000 })),
        Grammar::Regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}".into()),
        Grammar::Gbnf("root ::= ((\"a\"{1,10000}){1,10000}){1,10000}".into()),
    ] {
        let started = Instant::now();
        let mut mask = match compiler.compile(&grammar) {
            Ok(compiled) => compiled.mask(),
            Err(_) => continue,
        };
        let mut logits = vec![0.0; 1000];
        let _ = mask.restrict(&mut logits);
        assert!(started.elapsed() < Duration::from_secs(60), "{grammar:?} took {:?}", started.elapsed());
    }
}

#[test]
fn compiled_grammars_are_kept_and_masks_are_independent() {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    let grammar = Grammar::Regex("ab".into());
    let (first, second) = (compiler.compile(&grammar).unwrap(), compiler.compile(&grammar).unwrap());
    assert!(Arc::ptr_eq(&first.matcher, &second.matcher));
    let tokenizer = tokenizer();
    assert_eq!(feed(&tokenizer, &first, "a", true), Text::Begun);
    assert_eq!(feed(&tokenizer, &second, "ab", true), Text::Done);
    assert!(first.mask().accept(tokenizer.encode("z", false).unwrap()[0]).is_err());
}
