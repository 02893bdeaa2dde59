//! Converts text without special tokens to token ids. Splits the text into words, and each word into tokens.

use super::merging::Merging;
use super::unigram::Unigram;
use super::word_piece::WordPiece;
use crate::error::TokenizerError;
use fancy_regex::Regex;
use std::sync::Arc;
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

/// Cuts that are applied in order. The slice is shared, because cloning a cut would compile its regular
/// expression again.
pub(super) type Cuts = Arc<[Cut]>;

/// One step in splitting text into words.
#[derive(Debug)]
pub(super) enum Cut {
    /// Splits at the matches of a regular expression. Fails if the regex engine reaches a limit. The
    /// `tokenizers` library would instead silently stop splitting or drop the rest of the text.
    Expression {
        /// Whether to add a space before text that does not start with a space.
        spaced: bool,
        regex: Regex,
        behavior: SplitDelimiterBehavior,
        /// Whether the matches are the words and the text between them is the separator.
        invert: bool,
    },
    /// A pre-tokenizer of the `tokenizers` library.
    Library(PreTokenizerWrapper),
}

impl Cut {
    /// Creates a cut that splits at the matches of `regex`.
    pub(super) fn expression(regex: Regex, behavior: SplitDelimiterBehavior, invert: bool) -> Self {
        Self::Expression { spaced: false, regex, behavior, invert }
    }

    /// Creates a cut that maps bytes to characters without splitting.
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

/// Algorithm that splits a word into tokens.
#[derive(Clone, Debug)]
pub(super) enum Algorithm {
    /// Merges adjacent pieces.
    Merging(Arc<Merging>),
    /// Finds the tokens with the largest sum of scores.
    Unigram(Unigram),
    /// Finds the longest tokens.
    WordPiece(WordPiece),
}

/// Encoder that splits text into words and each word into tokens.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// Cuts for the first part of a text, or `None` if the text is not split.
    pub(super) first: Option<Cuts>,
    /// Cuts for later parts of a text.
    pub(super) later: Option<Cuts>,
    pub(super) algorithm: Algorithm,
}

impl Words {
    /// Appends the token ids of `text` to `ids`. `at_start` states whether `text` is the first part of the
    /// input.
    pub(super) fn encode(
        &self,
        text: &str,
        at_start: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let cuts = if at_start { &self.first } else { &self.later };
        let Some(cuts) = cuts else { return self.tokens(text, ids) };
        let mut words = PreTokenizedString::from(text);
        cuts.iter().try_for_each(|cut| cut.apply(&mut words)).map_err(failed)?;
        words
            .get_splits(OffsetReferential::Normalized, OffsetType::None)
            .into_iter()
            .try_for_each(|(word, ..)| self.tokens(word, ids))
    }

    fn tokens(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match &self.algorithm {
            Algorithm::Merging(merging) => merging.encode(word, ids),
            Algorithm::Unigram(unigram) => unigram.encode(word, ids),
            Algorithm::WordPiece(pieces) => {
                pieces.encode(word, ids);
                Ok(())
            }
        }
    }
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Text { cause: error.to_string() }
}
