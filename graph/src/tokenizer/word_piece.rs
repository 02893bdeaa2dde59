//! WordPiece vocabularies (`tokenizer.ggml.model = bert`): a word becomes the longest tokens, from left to right. Tokens
//! at the start of a word begin with `▁`.

use super::Tokenizer;
use super::normaliser::{Normaliser, TextChange};
use super::special::{Added, Finder};
use super::stream::{Form, Pieces};
use super::texts::{Index, Texts};
use super::vocabulary::{self, Kind, SPACE};
use super::words::{Algorithm, Cut, Words};
use crate::error::TokenizerError;
use crate::gguf::Metadata;
use std::sync::Arc;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

/// A WordPiece vocabulary.
#[derive(Clone, Debug)]
pub(super) struct WordPiece {
    index: Index,
    /// Length in bytes of the longest token.
    longest: usize,
    unknown: Option<u32>,
}

impl WordPiece {
    /// Appends the tokens of `word` to `ids`. A word that does not consist of tokens becomes the unknown token.
    pub(super) fn encode(&self, word: &str, ids: &mut Vec<u32>) {
        let (word, start) = (format!("{SPACE}{word}"), ids.len());
        let mut rest = word.as_str();
        while !rest.is_empty() {
            let ends = (1..=self.longest.min(rest.len())).rev().filter(|end| rest.is_char_boundary(*end));
            let Some((end, id)) = ends.filter_map(|end| Some((end, self.index.find(&rest[..end])?))).next()
            else {
                ids.truncate(start);
                ids.extend(self.unknown);
                return;
            };
            ids.push(id);
            rest = &rest[end..];
        }
    }
}

/// Builds the tokenizer from the metadata of a GGUF file.
pub(super) fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause };
    let tokens = vocabulary::read_unscored(metadata)?;
    let texts = Arc::new(Texts::new(tokens.iter().map(|token| token.text)).map_err(wrong)?);
    super::merging::check_lengths(tokens.iter().map(|token| token.text)).map_err(wrong)?;
    let algorithm = WordPiece {
        index: Index::new(texts.clone(), vocabulary::mergeable(&tokens)),
        longest: tokens.iter().map(|token| token.text.len()).max().unwrap_or_default(),
        unknown: vocabulary::id(metadata, &tokens, "tokenizer.ggml.unknown_token_id")?,
    };
    let id = |key: &str| vocabulary::id(metadata, &tokens, key);
    let (start, end) = (id("tokenizer.ggml.cls_token_id")?, id("tokenizer.ggml.seperator_token_id")?);
    let mut special = vocabulary::special(metadata, &tokens, true, false)?;
    special.bos = special.bos.or(start);
    (special.before, special.behind) = (special.bos.into_iter().collect(), end.into_iter().collect());
    let cuts = Arc::from([Cut::Library(PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer))]);
    let added = vocabulary::added(&tokens).map(|(id, token, control)| Added::new(id, token.text, control));
    let silent = |kind: Kind| matches!(kind, Kind::Control | Kind::Unknown);
    let form = |kind: Kind| if silent(kind) { Form::Silent } else { Form::Spaced };
    Ok(Tokenizer {
        raw: Finder::new(added.collect()).map_err(wrong)?,
        normaliser: Normaliser { steps: vec![TextChange::Bert], prefix_once: false },
        normalised: Finder::new(Vec::new()).map_err(wrong)?,
        words: Words {
            first: Some(Arc::clone(&cuts)),
            later: Some(cuts),
            algorithm: Algorithm::WordPiece(algorithm),
        },
        pieces: Pieces::new(texts, tokens.iter().map(|token| form(token.kind)).collect()).into(),
        strip_space: true,
        special,
    })
}
