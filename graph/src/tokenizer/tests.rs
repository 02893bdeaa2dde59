//! Tests with handmade vocabularies. They compare the tokenizer with a simple implementation of
//! SentencePiece's rules.

use super::vocabulary::SPACE;
use super::*;
use crate::gguf::Metadata;
use crate::gguf::{ModelFile, Writer};
use crate::source::MemorySource;
use proptest::prelude::*;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

/// Builds GGUF metadata from the texts, scores and types of tokens.
fn metadata(tokens: &[(String, f32, i32)], more: impl FnOnce(&mut Writer)) -> Metadata {
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "llama");
    w.put("tokenizer.ggml.tokens", &tokens.iter().map(|t| t.0.as_str()).collect::<Vec<_>>()[..]);
    w.put("tokenizer.ggml.scores", &tokens.iter().map(|t| t.1).collect::<Vec<_>>()[..]);
    w.put("tokenizer.ggml.token_type", &tokens.iter().map(|t| t.2).collect::<Vec<_>>()[..]);
    more(&mut w);
    ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap().metadata
}

/// Returns `<unk>`, `<s>`, `</s>`, all byte tokens, and the normal tokens in `normal`. The first normal token
/// has the highest score.
fn with_bytes(normal: &[&str]) -> Vec<(String, f32, i32)> {
    let mut tokens =
        vec![("<unk>".into(), 0.0, UNKNOWN), ("<s>".into(), 0.0, CONTROL), ("</s>".into(), 0.0, CONTROL)];
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    tokens.extend(normal.iter().zip(0..).map(|(text, n)| ((*text).to_owned(), -(n as f32), NORMAL)));
    tokens
}

/// Id of the first normal token.
const FIRST: u32 = 259;

fn specials(w: &mut Writer) {
    w.put("tokenizer.ggml.bos_token_id", 1u32);
    w.put("tokenizer.ggml.eos_token_id", 2u32);
}

fn tokenizer(normal: &[&str]) -> Tokenizer {
    Tokenizer::from_metadata(&metadata(&with_bytes(normal), specials)).unwrap()
}

#[test]
fn merges_by_score_not_by_length() {
    let t = tokenizer(&["bc", "ab", "abc", "▁", "a", "b", "c"]);
    let [bc, abc, space, a] = [FIRST, FIRST + 2, FIRST + 3, FIRST + 4];
    // The token bc has a higher score than ab, so the tokenizer merges bc first, then a and bc.
    assert_eq!(t.encode("abc", false).unwrap(), [space, abc]);
    assert_eq!(t.encode("aabcbc", false).unwrap(), [space, a, abc, bc]);
    assert_eq!(t.encode("abc", true).unwrap(), [1, space, abc]);
    assert_eq!(t.encode("", false).unwrap(), [0u32; 0]);
    assert_eq!(t.encode("", true).unwrap(), [1]);
    assert_eq!((t.bos(), t.eos(), t.vocabulary_size()), (Some(1), &BTreeSet::from([2]), 259 + 7));
}

/// The library `sentencepiece` 0.2 gives these ids for both vocabularies, whatever the order of the tokens.
#[test]
fn leftmost_merge_comes_first_among_equal_scores() {
    for texts in [["bc", "ab", "▁", "a", "b", "c"], ["ab", "bc", "▁", "a", "b", "c"]] {
        let mut tokens = with_bytes(&texts);
        tokens.iter_mut().for_each(|token| token.1 = 0.0);
        let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
        let ab = FIRST + texts.iter().position(|text| *text == "ab").unwrap() as u32;
        assert_eq!(t.encode("abc", false).unwrap(), [FIRST + 2, ab, FIRST + 5], "{texts:?}");
    }
}

#[test]
fn duplicate_texts_use_the_first_id_and_its_score() {
    // Two tokens have the text "ab". The first one counts, and its score is lower than that of "bc".
    let mut tokens = with_bytes(&["bc", "ab", "▁", "a", "b", "c"]);
    tokens.push(("ab".into(), 1.0, NORMAL));
    let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
    let [bc, ab, space, a] = [FIRST, FIRST + 1, FIRST + 2, FIRST + 3];
    assert_eq!(t.encode("ab", false).unwrap(), [space, ab]);
    assert_eq!(t.encode("abc", false).unwrap(), [space, a, bc]);
}

#[test]
fn unknown_characters_survive_as_bytes() {
    let t = tokenizer(&["▁", "a"]);
    let ids = t.encode("a€", false).unwrap();
    assert_eq!(ids, [FIRST, FIRST + 1, 3 + 0xE2, 3 + 0x82, 3 + 0xAC]);
    assert_eq!(t.decode(&ids), "a€");
    // A stream returns whole characters only.
    let mut stream = t.stream();
    let shown: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(shown, ["", "a", "", "", "€"]);
    assert_eq!(stream.finish(), "");
}

#[test]
fn streams_replace_invalid_utf8() {
    let t = tokenizer(&["▁", "a"]);
    // Invalid UTF-8: a letter or the end of the text interrupts a character, or a byte cannot start a
    // character.
    assert_eq!(t.decode(&[3 + 0xE2, 3 + 0x82, FIRST + 1]), "\u{fffd}a");
    assert_eq!(t.decode(&[FIRST + 1, 3 + 0xE2, 3 + 0x82]), "a\u{fffd}");
    assert_eq!(t.decode(&[3 + 0xFF, FIRST + 1]), "\u{fffd}a");
    assert_eq!(t.decode(&[99_999]), "\u{fffd}");
    assert_eq!(t.decode(&[FIRST + 1, 0]), "a \u{2047} ");
}

#[test]
fn removes_only_the_added_space() {
    let t = tokenizer(&["▁a", "▁", "a"]);
    for text in ["a", " a", "  a", "a ", "a  a", " "] {
        assert_eq!(t.decode(&t.encode(text, true).unwrap()), text, "{text:?}");
    }
    // A leading space after the prompt belongs to the text.
    let mut stream = t.stream();
    assert_eq!(stream.push(1), "");
    assert_eq!(stream.push(FIRST), "a");
    assert_eq!(stream.push(FIRST), " a");
}

#[test]
fn adds_no_space_if_the_model_says_so() {
    let m = metadata(&with_bytes(&["▁", "a"]), |w| {
        specials(w);
        w.put("tokenizer.ggml.add_space_prefix", false);
        w.put("tokenizer.ggml.add_bos_token", false);
        w.put("tokenizer.ggml.add_eos_token", true);
        w.put("tokenizer.ggml.eot_token_id", 1u32);
    });
    let t = Tokenizer::from_metadata(&m).unwrap();
    assert_eq!(t.encode("a", true).unwrap(), [FIRST + 1, 2]);
    assert_eq!(t.decode(&[FIRST, FIRST + 1]), " a");
    assert_eq!(t.eos(), &BTreeSet::from([1, 2]));
}

#[test]
fn control_tokens_in_a_text_are_text_by_default() {
    let t = tokenizer(&["▁", "a", "<", "s", ">", "/"]);
    let as_text = t.encode("a</s>", false).unwrap();
    assert_eq!(t.decode(&as_text), "a</s>");
    assert!(!as_text.contains(&2));
    assert_eq!(t.encode_with_control("a</s>a", true).unwrap(), [1, FIRST, FIRST + 1, 2, FIRST, FIRST + 1]);
    assert_eq!(t.encode_with_control("</s>", false).unwrap(), [2]);
    // The name of a byte token is plain text, too.
    assert_eq!(t.decode(&t.encode("<0x41>", false).unwrap()), "<0x41>");
}

#[test]
fn marked_control_tokens_are_text() {
    let mut tokens = with_bytes(&["▁", "a", "<", "s", ">", "/", "|"]);
    tokens.extend(["<|a|>", "<|a|>a"].map(|text| (text.to_owned(), 0.0, CONTROL)));
    tokens.push(("<a>".to_owned(), 0.0, USER));
    let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
    let [turn, html] = [FIRST + 7, FIRST + 9];
    let marked = |text: &str| t.mark_control(text, '\u{FDD0}').replace('\u{FDD0}', "^");
    assert_eq!(marked("a <a> < | b"), "a <a> < | b");
    assert_eq!(marked("</s><|a|><a>"), "<^/s><^|a|><a>");
    // The next text may complete a token.
    assert_eq!(marked("<|a|><|a"), "<^|a|><^|a");
    assert_eq!(marked("a<"), "a<^");
    let ids = |text: &str| t.encode_marked(text, true, '^').unwrap();
    let plain = t.encode("<|a|><a>", false).unwrap();
    assert_eq!(ids("<|a|><^|a|><a>"), [&[1, turn], &plain[..]].concat());
    assert!(plain.ends_with(&[html]) && !plain.contains(&turn));
}

/// Tokens of older converters, which gave end tokens the types of normal or user-defined tokens.
#[test]
fn end_tokens_of_any_type_are_control_tokens() {
    let normal = ["▁", "a", "<", "s", ">", "/"];
    for kind in [NORMAL, CONTROL, USER] {
        let mut tokens = with_bytes(&normal);
        tokens.extend(["<|im_end|>", "[EOT]", "<fim_prefix>"].map(|text| (text.to_owned(), 0.0, kind)));
        let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
        let [end, prefix] = [FIRST + 6, FIRST + 8];
        assert_eq!(*t.eos(), [2, end, end + 1].into(), "type {kind}");
        assert_eq!(t.encode_with_control("<|im_end|>", false).unwrap(), [end]);
        assert_eq!(t.encode_with_control("<fim_prefix>", false).unwrap(), [prefix]);
        assert!(!t.encode("<|im_end|>", false).unwrap().contains(&end), "type {kind}");
        assert_eq!(t.decode(&[FIRST + 1, end]), "a");
    }
    // In the vocabularies of Gemma, `</s>` is the HTML tag. Generation ends at it only if the file says so.
    let mut tokens = with_bytes(&normal);
    tokens[2].2 = USER;
    let ends = |tokens: &[(String, f32, i32)], w: fn(&mut Writer)| {
        Tokenizer::from_metadata(&metadata(tokens, w)).unwrap().eos().clone()
    };
    assert_eq!(ends(&tokens, |_| ()), [2].into());
    tokens.push(("</b>".to_owned(), 0.0, USER));
    assert_eq!(ends(&tokens, |_| ()), [].into());
    assert_eq!(ends(&tokens, specials), [2].into());
    for key in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        let tokenizer = Tokenizer::from_metadata(&metadata(&with_bytes(&normal), |w| {
            w.put(&format!("tokenizer.ggml.{key}_token_id"), FIRST);
        }));
        assert_eq!(*tokenizer.unwrap().eos(), [2, FIRST].into(), "{key}");
    }
}

/// The merges of Qwen 2 produce `</s>`, which is ordinary text there. Its added tokens are not.
#[test]
fn tokens_that_merges_produce_are_ordinary_text() {
    let mut w = Writer::new();
    w.put("tokenizer.ggml.tokens", &["</", "s>", "</s>", "<EOT>", "<|endoftext|>"][..]);
    w.put("tokenizer.ggml.merges", &["< /", "s >", "</ s>", "<E OT>x"][..]);
    let m = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap().metadata;
    let tokens = vocabulary::read_unscored(&m).unwrap();
    let control: Vec<u32> = vocabulary::control(&tokens).map(|(id, _)| id).collect();
    assert_eq!(control, [3, 4]);
}

#[test]
fn user_defined_tokens_come_before_merges_and_the_longest_wins() {
    let mut tokens = with_bytes(&["ab", "bc", "▁", "a", "b", "c"]);
    tokens.push(("b c".into(), 0.0, USER));
    tokens.push(("b".into(), 0.0, USER));
    let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
    let (space, a, c, b_c, b) = (FIRST + 2, FIRST + 3, FIRST + 5, FIRST + 6, FIRST + 7);
    assert_eq!(t.encode("ab c", false).unwrap(), [space, a, b_c]);
    assert_eq!(t.encode("abc", false).unwrap(), [space, a, b, space, c], "each rest gets its own space");
    assert_eq!(t.decode(&[b_c]), "b c");
}

/// Checks that user-defined tokens of GGUF files are cut out of the text first, and that each rest gets its own space, as
/// by llama.cpp and `transformers`.
#[test]
fn user_defined_and_control_tokens_split_texts_alike() {
    let normal = ["▁", "u", "s", "h", "i", "▁u", "▁us", "us", "hi", "▁hi"];
    let id = |text: &str| FIRST + normal.iter().position(|other| *other == text).unwrap() as u32;
    let (line, start, end) = (3 + 0x0A, FIRST + 10, FIRST + 11);
    for kind in [USER, CONTROL] {
        let mut tokens = with_bytes(&normal);
        tokens.extend(["<|start|>", "<|stop|>", "\n\n"].map(|text| (text.to_owned(), 0.0, kind)));
        let t = Tokenizer::from_metadata(&metadata(&tokens, specials)).unwrap();
        for (text, ids) in [
            ("<|start|>us\nhi<|stop|>\n", vec![start, id("▁us"), line, id("hi"), end, id("▁"), line]),
            ("hi<|stop|>us", vec![id("▁hi"), end, id("▁us")]),
            ("us<|stop|> hi", vec![id("▁us"), end, id("▁"), id("▁hi")]),
            ("us\n\n\nhi", vec![id("▁us"), FIRST + 12, id("▁"), line, id("hi")]),
        ] {
            assert_eq!(t.encode_with_control(text, false).unwrap(), ids, "{text:?}");
            assert_eq!(t.encode(text, false).unwrap() == ids, kind == USER, "{text:?}");
        }
    }
}

/// Checks runs of spaces as user-defined tokens, which Gemma's files have beside `add_space_prefix = false`. The values are
/// llama.cpp's.
#[test]
fn runs_of_spaces_are_tokens() {
    let mut tokens = with_bytes(&["▁a", "▁", "a"]);
    tokens.extend(["  ", "   "].map(|text| (text.to_owned(), -1000.0, USER)));
    let m = metadata(&tokens, |w| w.put("tokenizer.ggml.add_space_prefix", false));
    let t = Tokenizer::from_metadata(&m).unwrap();
    let [word, space, a, two, three] = [0, 1, 2, 3, 4].map(|n| FIRST + n);
    for (text, ids) in [
        ("  a", vec![two, a]),
        (" a", vec![word]),
        ("a     a", vec![a, three, two, a]),
        ("a ", vec![a, space]),
    ] {
        assert_eq!(t.encode(text, false).unwrap(), ids, "{text:?}");
        assert_eq!(t.decode(&ids), text);
    }
}

/// Checks that special tokens of Phi-3 remove the white space behind them, except three, as in the model's own tokenizer.
/// The values are those of llama.cpp and of `transformers`.
#[test]
fn special_tokens_of_phi3_remove_white_space() {
    let mut tokens = with_bytes(&["▁", "h", "i", "▁h", "▁hi"]);
    tokens.extend(["<|user|>", "<|endoftext|>"].map(|text| (text.to_owned(), 0.0, CONTROL)));
    let [space, hi, user, end] = [FIRST, FIRST + 4, FIRST + 5, FIRST + 6];
    let kept = [user, space, 3 + 0x0A, FIRST + 1, FIRST + 2];
    for (name, ids) in [
        ("Phi-3-mini-4k-instruct", &[user, hi][..]),
        ("Phi 3.5 Mini Instruct", &[user, hi]),
        ("phi3", &[user, hi]),
        ("Phi-2", &kept),
        ("Llama", &kept),
    ] {
        let t = Tokenizer::from_metadata(&metadata(&tokens, |w| w.put("general.name", name))).unwrap();
        assert_eq!(t.encode_with_control("<|user|>\nhi", false).unwrap(), ids, "{name}");
        assert_eq!(t.encode_with_control("<|endoftext|> hi", false).unwrap(), [end, space, hi], "{name}");
        assert_eq!(t.encode_with_control("<unk> <s> ", false).unwrap(), [0, space, space, 1, space, space]);
    }
}

/// Checks that two pieces merge if their joined text is a token, even if one of them is no token. Adjacent unknown
/// characters become one unknown token. The values are those of the library `sentencepiece` 0.2.
#[test]
fn pieces_without_tokens_merge() {
    let tokens: Vec<_> = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("xy", NORMAL), ("▁", NORMAL), ("x", NORMAL)]
        .map(|(text, kind)| (text.to_owned(), 0.0, kind))
        .to_vec();
    let t = Tokenizer::from_metadata(&metadata(&tokens, |_| ())).unwrap();
    assert_eq!(t.encode("xyxy", false).unwrap(), [3, 2, 2]);
    assert_eq!(t.encode("x€€y", false).unwrap(), [3, 4, 0]);
    assert_eq!(t.encode("<unk>", false).unwrap(), [3, 0], "unknown characters behind a space");
    assert_eq!(t.encode_with_control("<unk>", false).unwrap(), [0]);
}

#[test]
fn special_tokens_outside_the_vocabulary_count_as_missing() {
    let good = with_bytes(&["▁", "a"]);
    let count = good.len() as u32;
    let check = |put: &dyn Fn(&mut Writer, &str)| {
        for key in ["bos", "eos", "eot", "eom", "padding", "unknown"] {
            let m = metadata(&good, |w| put(w, &format!("tokenizer.ggml.{key}_token_id")));
            let t = Tokenizer::from_metadata(&m).unwrap();
            assert_eq!(
                (t.bos(), t.eos()),
                (None, &BTreeSet::from([2])),
                "{key}: the text of </s> ends a text"
            );
            assert_eq!(t.encode("a", true).unwrap(), [FIRST, FIRST + 1], "{key}");
        }
    };
    check(&|w, key| w.put(key, u32::MAX));
    check(&|w, key| w.put(key, count));
    check(&|w, key| w.put(key, -1i32));
    check(&|w, key| w.put(key, u64::MAX));
}

/// Checks a vocabulary of Gemma 4, which has `▁` for the space, a list of merges, and byte tokens. The values are those
/// of the library `tokenizers` 0.23 for the same merges.
#[test]
fn gemma4_merges_by_a_list() {
    let tokens = with_bytes(&["▁", "a", "b", "ab", "▁a", "\n", "\n\n"]);
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "gemma4");
    w.put("tokenizer.ggml.tokens", &tokens.iter().map(|t| t.0.as_str()).collect::<Vec<_>>()[..]);
    w.put("tokenizer.ggml.token_type", &tokens.iter().map(|t| t.2).collect::<Vec<_>>()[..]);
    w.put("tokenizer.ggml.merges", &["▁ a", "a b", "\n \n"][..]);
    specials(&mut w);
    let model = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap();
    let t = Tokenizer::from_metadata(&model.metadata).unwrap();
    let [space, a, b, ab, space_a, line, lines] = [0, 1, 2, 3, 4, 5, 6].map(|n| FIRST + n);
    for (text, ids) in [
        ("ab ab", vec![ab, space_a, b]),
        ("a\n\n\n b", vec![a, lines, line, space, b]),
        ("é", vec![3 + 0xC3, 3 + 0xA9]),
    ] {
        assert_eq!(t.encode(text, false).unwrap(), ids, "{text:?}");
        assert_eq!(t.decode(&ids), text);
    }
    assert_eq!(t.encode("a", true).unwrap(), [1, a], "the begin token is there by default");
}

/// Checks a WordPiece vocabulary. The values are llama.cpp's, which are also those of `transformers`.
#[test]
fn word_piece_takes_the_longest_tokens() {
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁na", "ive", "▁naive", "s", "▁!", "▁中"];
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "bert");
    w.put("tokenizer.ggml.tokens", &tokens[..]);
    w.put("tokenizer.ggml.token_type", &[3, 3, 3, 3, 1, 1, 1, 1, 1, 1][..]);
    for (key, id) in [("unknown", 1u32), ("cls", 2), ("seperator", 3)] {
        w.put(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let model = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap();
    let t = Tokenizer::from_metadata(&model.metadata).unwrap();
    assert_eq!(t.encode("NaïveS  naive!中x", false).unwrap(), [6, 7, 6, 8, 9, 1]);
    assert_eq!(t.encode("", true).unwrap(), [2, 3]);
    assert_eq!(t.encode_with_control("na[MASK][SEP]", false).unwrap(), [4, 1, 1, 1, 3]);
    assert_eq!(t.decode(&[2, 6, 7, 8, 3]), "naives !");
}

#[test]
fn unknown_token_replaces_characters_without_byte_tokens() {
    let tokens: Vec<_> = [("<unk>", UNKNOWN), ("▁", NORMAL), ("a", NORMAL)]
        .map(|(text, kind)| (text.to_owned(), 0.0, kind))
        .to_vec();
    let t = Tokenizer::from_metadata(&metadata(&tokens, |_| ())).unwrap();
    assert_eq!(t.encode("a€€a", true).unwrap(), [1, 2, 0, 2]);
}

#[test]
fn rejects_bad_vocabularies() {
    let fails = |tokens: &[(String, f32, i32)], more: fn(&mut Writer)| {
        Tokenizer::from_metadata(&metadata(tokens, more)).unwrap_err().to_string()
    };
    let good = with_bytes(&["▁"]);
    let changed = |text: &str, score: f32, kind: i32| {
        let mut tokens = good.clone();
        tokens.push((text.to_owned(), score, kind));
        tokens
    };
    assert!(fails(&[], |_| ()).contains("no token for the space"));
    assert!(fails(&changed("x", f32::NAN, NORMAL), |_| ()).contains("no score for token 260 (x)"));
    assert!(fails(&changed("x", 0.0, 9), |_| ()).contains("token 260 (x) of the unknown type 9"));
    for text in ["<0x4>", "<0x+4>", "<0x4g>", "A", ""] {
        assert!(fails(&changed(text, 0.0, BYTE), |_| ()).contains("should be a byte"), "{text}");
    }
    assert!(fails(&changed(&"x".repeat(513), 0.0, NORMAL), |_| ()).contains("513 bytes"));
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "rwkv");
    let m = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap().metadata;
    let message = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert_eq!(
        message,
        "m.gguf: tokenizer model \"rwkv\" is not supported; supported are \"llama\", \"gpt2\", \"t5\", \"gemma4\", \"bert\""
    );
}

/// Checks that a vocabulary without `▁` is rejected. Fuzzing found that such a vocabulary encoded spaces as
/// the bytes of `▁`, which decoded to `▁`.
#[test]
fn rejects_a_vocabulary_without_the_space() {
    let message = Tokenizer::from_metadata(&metadata(&with_bytes(&["a"]), specials)).unwrap_err().to_string();
    assert_eq!(message, "m.gguf: the vocabulary has no token for the space (▁)");
}

#[test]
fn rejects_inconsistent_counts() {
    let mut w = Writer::new();
    w.put("tokenizer.ggml.model", "llama");
    w.put("tokenizer.ggml.tokens", &["a", "b"][..]);
    w.put("tokenizer.ggml.scores", &[0f32][..]);
    w.put("tokenizer.ggml.token_type", &[1i32, 1, 1][..]);
    let m = ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", w.header()))]).unwrap().metadata;
    let message = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert!(message.contains("2 tokens, 1 scores and 3 token types"), "{message}");
}

/// Applies SentencePiece's rule step by step. Each step merges the pair with the highest score. If several
/// pairs have this score, the step merges the leftmost one.
fn merged_by_hand(text: &str, normal: &[&str]) -> Vec<u32> {
    let rank = |text: &str| normal.iter().position(|t| *t == text);
    let mut symbols: Vec<String> = format!("▁{text}").chars().map(String::from).collect();
    loop {
        let best = (1..symbols.len())
            .filter_map(|right| Some((rank(&format!("{}{}", symbols[right - 1], symbols[right]))?, right)))
            .min();
        let Some((_, right)) = best else { break };
        let joined = symbols.remove(right);
        symbols[right - 1].push_str(&joined);
    }
    symbols.iter().map(|symbol| FIRST + rank(symbol).unwrap() as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that the tokenizer agrees with [`merged_by_hand`] for any vocabulary over two letters, any
    /// order of scores, and any text.
    #[test]
    fn merges_as_sentencepiece_does(
        chosen in proptest::sample::subsequence(
            vec!["ab", "ba", "aa", "bb", "aba", "bab", "aab", "abb", "baa", "bba", "abab", "baba", "abba", "aaba",
                 "abaab", "ababa", "babab", "aabaa", "▁a", "▁b", "▁ab", "▁▁", "a▁", "abaaba", "abbab",
                 "aaa", "aaaa", "aaaaa", "aaaaaa", "ababab", "aabaab", "aabaabaab"], 1..24).prop_shuffle(),
        text in "[ab ]{0,40}",
    ) {
        let mut normal = chosen;
        normal.extend(["▁", "a", "b"]);
        let t = tokenizer(&normal);
        let expected = if text.is_empty() { vec![] } else { merged_by_hand(&text.replace(' ', "▁"), &normal) };
        prop_assert_eq!(t.encode(&text, false).unwrap(), expected);
    }

    #[test]
    fn any_text_survives_a_round_trip(text in any::<String>()) {
        let t = tokenizer(&["▁", "a", "ab", "b", "▁a", "é"]);
        // Decoding turns every `▁` into a space, even if the text itself contained `▁`.
        let expected = text.replace(SPACE, " ");
        prop_assert_eq!(t.decode(&t.encode(&text, true).unwrap()), expected);
    }
}
