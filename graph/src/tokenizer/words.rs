//! Text to ids, once tokens that stand in it as they are have been taken out: it is cut into words, and within a word
//! neighbours are merged.

use crate::error::TokenizerError;
use fancy_regex::Regex;
use std::sync::Arc;
use tokenizers::models::bpe::BPE;
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

/// Cuts, one after the other. (Shared, for a copy would compile its expressions again.)
pub(super) type Cuts = Arc<[Cut]>;

/// A way to cut text.
#[derive(Debug)]
pub(super) enum Cut {
    /// At matches of an expression. The library's own step ends without an error where the engine reaches a limit, so that
    /// the rest of a text is one word or is lost.
    Expression {
        /// Puts a space before text that begins with none.
        spaced: bool,
        regex: Regex,
        behavior: SplitDelimiterBehavior,
        /// Takes matches for words and the rest for what is between them.
        invert: bool,
    },
    /// A step of the library.
    Library(PreTokenizerWrapper),
}

impl Cut {
    /// A cut at the matches of an expression.
    pub(super) fn expression(regex: Regex, behavior: SplitDelimiterBehavior, invert: bool) -> Self {
        Self::Expression { spaced: false, regex, behavior, invert }
    }

    /// Writes bytes as letters and cuts nothing.
    pub(super) fn letters() -> Self {
        Self::Library(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)))
    }

    fn apply(&self, words: &mut PreTokenizedString) -> tokenizers::Result<()> {
        match self {
            Self::Library(step) => step.pre_tokenize(words),
            Self::Expression { spaced, regex, behavior, invert } => words.split(|_, mut word| {
                if *spaced && !word.get().starts_with(' ') {
                    word.prepend(" ");
                }
                if *invert { word.split(Invert(regex), *behavior) } else { word.split(regex, *behavior) }
            }),
        }
    }
}

/// Cuts and merges.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// For what a text begins with. `None`: no cuts.
    pub(super) first: Option<Cuts>,
    /// For what comes later in it.
    pub(super) later: Option<Cuts>,
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
        let cuts = if at_start { &self.first } else { &self.later };
        let Some(cuts) = cuts else { return self.merge(text, ids) };
        let mut words = PreTokenizedString::from(text);
        cuts.iter().try_for_each(|cut| cut.apply(&mut words)).map_err(failed)?;
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
