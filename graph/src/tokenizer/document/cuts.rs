//! Reads the pre-tokenizers of a `tokenizer.json`, which split a text into words.

use super::super::pre::GPT2;
use super::super::words::{Cut, Cuts};
use super::reader::{Pattern, Reader, is_space};
use crate::error::{Quoted, TokenizerError};
use crate::tokenizer::vocabulary::SPACE;
use fancy_regex::Regex;
use serde::Deserialize;
use std::sync::Arc;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

/// Maximum number of pre-tokenizers.
const MAX_STEPS: usize = 16;
/// Maximum length of a regular expression in bytes.
const MAX_EXPRESSION_BYTES: usize = 4096;
/// Maximum number of atoms in a regular expression. The regex engine expands counted repetitions, so every
/// repetition of an atom counts.
const MAX_ATOMS: u64 = 20_000;

/// A pre-tokenizer, or a sequence of pre-tokenizers.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    Split {
        pattern: Pattern,
        behavior: SplitDelimiterBehavior,
        #[serde(default)]
        invert: bool,
    },
    ByteLevel {
        #[serde(default)]
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Metaspace {
        replacement: String,
        #[serde(default)]
        prepend_scheme: Option<PrependScheme>,
        #[serde(default)]
        add_prefix_space: Option<bool>,
        #[serde(default)]
        split: Option<bool>,
    },
    Digits {
        #[serde(default)]
        individual_digits: bool,
    },
    WhitespaceSplit,
    Punctuation {
        #[serde(default = "isolated")]
        behavior: SplitDelimiterBehavior,
    },
}

fn isolated() -> SplitDelimiterBehavior {
    SplitDelimiterBehavior::Isolated
}

fn yes() -> bool {
    true
}

/// Returns the rule for prepending `▁` to a text. Older files have only the flag `add_prefix_space`.
pub(super) fn scheme(prepend: Option<PrependScheme>, add_prefix_space: Option<bool>) -> PrependScheme {
    match (prepend, add_prefix_space) {
        (_, Some(false)) => PrependScheme::Never,
        (Some(scheme), _) => scheme,
        (None, _) => PrependScheme::Always,
    }
}

impl PreTokenizer {
    /// Returns the pre-tokenizers, with all sequences flattened.
    fn steps(&self) -> Vec<&PreTokenizer> {
        match self {
            PreTokenizer::Sequence { pretokenizers } => {
                pretokenizers.iter().flat_map(PreTokenizer::steps).collect()
            }
            step => vec![step],
        }
    }

    /// Builds the cuts for the first part of a text, and the cuts for later parts. The `tokenizers` library
    /// applies some rules only at the start of a text. Ragtag passes it only the parts between special
    /// tokens, so the library cannot recognize the first part.
    pub(super) fn build(&self, reader: &Reader<'_>) -> Result<(Cuts, Cuts), TokenizerError> {
        let steps = self.steps();
        if steps.len() > MAX_STEPS {
            return Err(reader.unsupported(format!("more than {MAX_STEPS} pre-tokenizers")));
        }
        let build = |first: bool| -> Result<Cuts, TokenizerError> {
            let mut cuts = Vec::new();
            steps.iter().try_for_each(|step| step.build_one(reader, first, &mut cuts))?;
            Ok(cuts.into())
        };
        let first = build(true)?;
        let differ = steps.iter().any(|step| matches!(step, PreTokenizer::Metaspace { .. }));
        let later = if differ { build(false)? } else { Arc::clone(&first) };
        Ok((first, later))
    }

    /// Appends the cuts of a single pre-tokenizer to `cuts`.
    fn build_one(&self, reader: &Reader<'_>, first: bool, cuts: &mut Vec<Cut>) -> Result<(), TokenizerError> {
        let cut = match self {
            PreTokenizer::Sequence { .. } => return Ok(()),
            PreTokenizer::Split { pattern, behavior, invert } => {
                Cut::expression(expression(reader, pattern)?, *behavior, *invert)
            }
            PreTokenizer::ByteLevel { add_prefix_space: spaced, use_regex: true } => {
                let regex = compiled(reader, GPT2)?;
                let (spaced, behavior) = (*spaced, SplitDelimiterBehavior::Isolated);
                cuts.push(Cut::Expression { spaced, regex, behavior, invert: false });
                Cut::letters()
            }
            PreTokenizer::ByteLevel { add_prefix_space, use_regex: false } => {
                Cut::Library(PreTokenizerWrapper::ByteLevel(ByteLevel::new(*add_prefix_space, false, false)))
            }
            PreTokenizer::Metaspace { replacement, .. } if !is_space(replacement) => {
                let text = Quoted(replacement);
                return Err(reader.unsupported(format!("\"{text}\" for the space, instead of ▁")));
            }
            PreTokenizer::Metaspace { prepend_scheme, add_prefix_space, split, .. } => {
                let prepend = match scheme(*prepend_scheme, *add_prefix_space) {
                    PrependScheme::First if !first => PrependScheme::Never,
                    scheme => scheme,
                };
                let metaspace = Metaspace::new(SPACE, prepend, split.unwrap_or(true));
                Cut::Library(PreTokenizerWrapper::Metaspace(metaspace))
            }
            PreTokenizer::Digits { individual_digits } => {
                Cut::Library(PreTokenizerWrapper::Digits(Digits::new(*individual_digits)))
            }
            PreTokenizer::Punctuation { behavior } => {
                Cut::Library(PreTokenizerWrapper::Punctuation(Punctuation::new(*behavior)))
            }
            PreTokenizer::WhitespaceSplit => {
                Cut::Library(PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit))
            }
        };
        cuts.push(cut);
        Ok(())
    }
}

/// Compiles `pattern` to a regular expression. Rejects patterns that are too large.
fn expression(reader: &Reader<'_>, pattern: &Pattern) -> Result<Regex, TokenizerError> {
    match pattern {
        Pattern::String(text) if text.len() <= MAX_EXPRESSION_BYTES => {
            compiled(reader, &fancy_regex::escape(text))
        }
        Pattern::Regex(regex) if regex.len() <= MAX_EXPRESSION_BYTES && atoms(regex) <= MAX_ATOMS => {
            compiled(reader, regex)
        }
        _ => Err(reader.unsupported("a pre-tokenizer with an expression this large")),
    }
}

fn compiled(reader: &Reader<'_>, regex: &str) -> Result<Regex, TokenizerError> {
    Regex::new(regex)
        .map_err(|error| reader.wrong(format!("has an invalid expression: {}", Quoted(&error.to_string()))))
}

/// Returns an upper bound on the number of atoms in `regex` after counted repetitions are expanded.
fn atoms(regex: &str) -> u64 {
    // One entry per open group: the number of atoms so far, and the number of atoms in the group's last item.
    let mut groups = vec![(0u64, 0u64)];
    let mut characters = regex.chars().peekable();
    while let Some(character) = characters.next() {
        let (sum, last) = groups.last_mut().map_or((0, 0), |group| *group);
        let next = match character {
            '(' => {
                groups.push((0, 0));
                continue;
            }
            ')' if groups.len() > 1 => {
                groups.pop();
                let (before, _) = groups.last().copied().unwrap_or_default();
                (before.saturating_add(sum.max(1)), sum.max(1))
            }
            '{' => {
                let counts: String = characters.clone().take_while(|c| *c != '}').take(64).collect();
                let most = counts.split(',').filter_map(|count| count.trim().parse::<u64>().ok()).max();
                let more = last.saturating_mul(most.unwrap_or(1).saturating_sub(1));
                (sum.saturating_add(more), last.saturating_add(more))
            }
            '\\' => {
                characters.next();
                (sum.saturating_add(1), 1)
            }
            _ => (sum.saturating_add(1), 1),
        };
        if let Some(group) = groups.last_mut() {
            *group = next;
        }
    }
    groups.into_iter().fold(0, |all, (sum, _)| all.saturating_add(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_multiply() {
        assert_eq!(atoms("abc"), 3);
        assert!(atoms(r"\p{N}{1,3}| ?[^\s]+") < 30);
        assert_eq!(atoms("(?=a){1000}"), 3000 + 5);
        assert!(atoms("((?=a){1000}){1000}") >= 1_000_000);
        assert!(atoms("(((((((a{999}){999}){999}){999}){999}){999}){999}){999}") > MAX_ATOMS);
        assert!(atoms("((((") < 5);
        assert!(atoms("))))") >= 4);
    }
}
