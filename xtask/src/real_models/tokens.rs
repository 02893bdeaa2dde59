//! Checks the tokens of released vocabularies. llama.cpp has computed the expected tokens of the committed strings, and
//! `tokenizers` those of the strings beside the vocabularies.

use super::Checks;
use ragtag_graph::gguf::ModelFile;
use ragtag_graph::{MemorySource, Tokenizer};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a header, in bytes. The weights behind it are not read.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Separator of the strings beside a vocabulary.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Tokens of the committed strings in a vocabulary.
#[derive(Deserialize)]
struct Golden {
    /// Tokens of each string as plain text.
    plain: Vec<Vec<u32>>,
    /// Tokens of "Hello, world!" with special tokens around it.
    special: Vec<u32>,
    /// Tokens of the strings that begin with `<`, with control tokens.
    control: Vec<Vec<u32>>,
}

/// Returns the tokenizer of a model file.
pub(super) fn tokenizer(path: &Path) -> Result<Tokenizer, String> {
    let mut header = Vec::new();
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    file.take(MAX_HEADER_BYTES).read_to_end(&mut header).map_err(|e| format!("{}: {e}", path.display()))?;
    let source = MemorySource::new(path.display().to_string(), header);
    let file = ModelFile::open_headers(vec![Arc::new(source)]).map_err(|e| e.to_string())?;
    Tokenizer::from_metadata(&file.metadata).map_err(|e| e.to_string())
}

/// Checks all vocabularies.
pub(super) fn check(checks: &mut Checks<'_>) -> Result<(), String> {
    let strings: Vec<String> = checks.golden("strings.json")?;
    let vocabularies: BTreeMap<String, Golden> = checks.golden("tokens.json")?;
    for (name, golden) in &vocabularies {
        let path = checks.file(&format!("llama.cpp/ggml-vocab-{name}.gguf"));
        match tokenizer(&path) {
            Ok(tokenizer) => check_vocabulary(checks, name, &tokenizer, &strings, golden)?,
            Err(error) => checks.fail(format!("{name}: {error}")),
        }
    }
    Ok(())
}

fn check_vocabulary(
    checks: &mut Checks<'_>,
    name: &str,
    tokenizer: &Tokenizer,
    strings: &[String],
    golden: &Golden,
) -> Result<(), String> {
    let plain = |text: &str| tokenizer.encode(text, false);
    let control = |text: &str| tokenizer.encode_with_control(text, false);
    let beside = beside(checks, name)?;
    let mut compared = 0;
    let mut compare = |kind: &str, text: &str, found: Result<Vec<u32>, _>, expected: &[u32]| {
        compared += 1;
        let found = found.map_err(|e: ragtag_graph::TokenizerError| e.to_string());
        let what = || format!("{name}, {kind}, {text:?}: {found:?} instead of {expected:?}");
        checks.expect(found.as_deref() == Ok(expected), what);
    };
    for (text, expected) in strings.iter().zip(&golden.plain) {
        compare("plain", text, plain(text), expected);
    }
    for (text, expected) in strings.iter().filter(|text| text.starts_with('<')).zip(&golden.control) {
        compare("control", text, control(text), expected);
    }
    let hello = "Hello, world!";
    compare("special", hello, tokenizer.encode(hello, true), &golden.special);
    for (text, expected) in beside {
        compare("beside", &text, plain(&text), &expected);
    }
    println!("{name}: {compared} strings");
    Ok(())
}

/// Returns the strings beside a vocabulary with their tokens, or nothing if there are none.
fn beside(checks: &Checks<'_>, name: &str) -> Result<Vec<(String, Vec<u32>)>, String> {
    let read = |kind| {
        let path = checks.file(&format!("llama.cpp/ggml-vocab-{name}.gguf.{kind}"));
        if !path.exists() {
            return Ok(String::new());
        }
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let (texts, tokens) = (read("inp")?, read("out")?);
    let ids = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>();
    let tokens = tokens.lines().map(|line| ids(line).map_err(|e| format!("{name}: {line:?}: {e}")));
    texts.split(SEPARATOR).map(str::to_owned).zip(tokens).map(|(text, ids)| Ok((text, ids?))).collect()
}
