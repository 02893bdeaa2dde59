//! Grammars that constrain the text of `ragtag run`.

use super::args::ConstraintArgs;
use super::error::{Error, Result};
use super::files::{input_name, read_input};
use crate::files::MAX_JSON_BYTES;
use crate::grammar::{Grammar, GrammarCompiler};
use crate::{MaskSource, Model};

/// Reads the grammar of the arguments.
pub(super) fn grammar(args: &ConstraintArgs) -> Result<Option<Grammar>> {
    if let Some(path) = &args.json_schema {
        let text = read_input(path, MAX_JSON_BYTES)?;
        let schema = serde_json::from_str(&text);
        let schema = schema.map_err(|e| Error::Usage(format!("{}: {e}", input_name(path).display())))?;
        return Ok(Some(Grammar::JsonSchema(schema)));
    }
    let source = args.grammar.as_deref().map(|path| read_input(path, MAX_JSON_BYTES)).transpose()?;
    // Only GBNF has this sign.
    Ok(source
        .map(|source| if source.contains("::=") { Grammar::Gbnf(source) } else { Grammar::Lark(source) }))
}

/// Compiles a grammar for the vocabulary of `model`. The text follows reasoning that ends with `marker`, if there is one.
pub(super) fn mask(model: &Model, grammar: Grammar, marker: Option<&str>) -> Result<MaskSource> {
    let grammar = match marker {
        Some(marker) => grammar.after(marker),
        None => grammar,
    };
    let compiled = GrammarCompiler::new(model.tokenizer()?).and_then(|compiler| compiler.compile(&grammar));
    compiled.map(MaskSource::from).map_err(|error| Error::Usage(error.to_string()))
}
