//! Text to ids, once tokens that stand in it as they are have been taken out: it is cut into words, and within a word
//! neighbours are merged.

use crate::error::TokenizerError;
use std::sync::Arc;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// Cuts and merges.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// For what a text begins with. `None`: no cuts. (Shared, for a copy would compile its expressions again.)
    pub(super) first: Option<Arc<PreTokenizerWrapper>>,
    /// For what comes later in it.
    pub(super) later: Option<Arc<PreTokenizerWrapper>>,
    pub(super) merging: BPE,
}

impl Words {
    /// Appends the ids of a text.
    pub(super) fn encode(
        &self,
        text: &str,
        at_start: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let cut = if at_start { &self.first } else { &self.later };
        let Some(cut) = cut else { return self.merge(text, ids) };
        let mut words = PreTokenizedString::from(text);
        cut.pre_tokenize(&mut words).map_err(failed)?;
        words
            .get_splits(OffsetReferential::Normalized, OffsetType::None)
            .into_iter()
            .try_for_each(|(word, ..)| self.merge(word, ids))
    }

    fn merge(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let tokens = self.merging.tokenize(word).map_err(failed)?;
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Text { cause: error.to_string() }
}
