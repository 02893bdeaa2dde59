//! Implements `ragtag tokenize`, which shows the tokens of a text.

use super::args::TokenizeArgs;
use super::error::{Error, Result};
use super::files::file_name;
use super::output::{out_width, print, print_json, show, table};
use super::run::{encode, read_prompt};
use crate::{BUNDLED_MODEL, Model};
use ragtag_graph::{Tokenizer, TokenizerError};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A token of a text.
#[derive(Debug, Serialize)]
pub(super) struct Token<'a> {
    id: u32,
    /// Text of the token in the vocabulary.
    piece: &'a str,
    /// Text that is complete with this token. It is empty for control tokens.
    text: String,
}

pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    let (model, text) = words(args)?;
    let name = model.map_or(BUNDLED_MODEL.to_owned(), |path| file_name(Path::new(path)));
    let tokenizer = match model {
        Some(path) => Model::open_tokenizer(path)?,
        None => Model::bundled()?.tokenizer()?.clone(),
    };
    if !args.decode.is_empty() {
        return decode(args, &tokenizer);
    }
    let text = match (text, &args.file) {
        (Some(text), _) => {
            text.to_str().ok_or_else(|| Error::Usage("the text is not UTF-8".into()))?.to_owned()
        }
        (None, file) => read_prompt(file.as_deref().unwrap_or(Path::new("-")))?,
    };
    let ids = tokens(args, &tokenizer, &text).map_err(|cause| crate::Error::Tokenizer { name, cause })?;
    if args.ids {
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        return print(&format!("{}\n", ids.join(",")));
    }
    let tokens = described(&tokenizer, &ids);
    match args.json {
        true => print_json(&serde_json::json!({ "tokens": tokens })),
        false => show(&as_table(&tokens, out_width())),
    }
}

/// Returns the path of the model, and the text if it is an argument.
fn words(args: &TokenizeArgs) -> Result<(Option<&OsStr>, Option<&OsStr>)> {
    let words: Vec<_> = args.words.iter().map(OsString::as_os_str).collect();
    let named = args.model.as_deref().map(Path::as_os_str);
    let (model, text) = match (named, words.as_slice()) {
        (named, []) => (named, None),
        (Some(model), &[text]) => (Some(model), Some(text)),
        (None, &[model]) => (Some(model), None),
        (None, &[model, text]) => (Some(model), Some(text)),
        _ => return Err(Error::Usage("more than one model (-m MODEL and MODEL)".into())),
    };
    let other = args.prompt.is_some() || args.file.is_some() || !args.decode.is_empty();
    if text.is_some() && other {
        return Err(Error::Usage("TEXT cannot be used with -p, -f or --decode".into()));
    }
    Ok((model, text.or(args.prompt.as_deref())))
}

/// Returns the tokens of a text, which `run` gives to the model for the same prompt.
fn tokens(
    args: &TokenizeArgs,
    tokenizer: &Tokenizer,
    text: &str,
) -> std::result::Result<Vec<u32>, TokenizerError> {
    match (args.no_bos, args.no_special) {
        (false, plain) => encode(tokenizer, text, !plain),
        (true, false) => tokenizer.encode_with_control(text, false),
        (true, true) => tokenizer.encode(text, false),
    }
}

fn decode(args: &TokenizeArgs, tokenizer: &Tokenizer) -> Result<()> {
    if let Some(id) = args.decode.iter().find(|id| tokenizer.piece(**id).is_none()) {
        let count = tokenizer.vocabulary_size();
        return Err(Error::Usage(format!("no token {id}; the vocabulary has {count} tokens")));
    }
    let text = tokenizer.decode(&args.decode);
    match args.json {
        true => print_json(&serde_json::json!({ "text": text })),
        false => print(&(text + "\n")),
    }
}

pub(super) fn described<'a>(tokenizer: &'a Tokenizer, ids: &[u32]) -> Vec<Token<'a>> {
    let mut stream = tokenizer.stream();
    let token =
        |id: &u32| Token { id: *id, piece: tokenizer.piece(*id).unwrap_or_default(), text: stream.push(*id) };
    let mut tokens: Vec<_> = ids.iter().map(token).collect();
    if let Some(last) = tokens.last_mut() {
        last.text += &stream.finish();
    }
    tokens
}

pub(super) fn as_table(tokens: &[Token<'_>], width: Option<u16>) -> String {
    let mut table = table(&[">id", "piece", "text"], width);
    for token in tokens {
        table.add_row([token.id.to_string(), token.piece.to_owned(), format!("{:?}", token.text)]);
    }
    format!("{table}\n")
}
