//! Reads the normalizers in a `tokenizer.json`.

use super::reader::{Pattern, Reader};
use crate::error::TokenizerError;
use crate::tokenizer::character_map::CharacterMap;
use crate::tokenizer::normaliser::{Normaliser, TextChange};
use serde::Deserialize;
use std::sync::Arc;

/// Maximum number of normalizers. Each normalizer may lengthen a text up to fourfold.
const MAX_STEPS: usize = 4;
/// Maximum length, in bytes, of a text that a normalizer prepends.
const MAX_PREFIX_BYTES: usize = 16;

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Precompiled {
        precompiled_charsmap: String,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFKC")]
    Nfkc,
}

/// Returns the normaliser that applies the normalizers in order.
pub(super) fn normaliser(
    reader: &Reader<'_>,
    normalizer: Option<&Normalizer>,
) -> Result<Normaliser, TokenizerError> {
    let mut steps = Vec::new();
    let mut left: Vec<&Normalizer> = normalizer.into_iter().collect();
    while let Some(next) = left.pop() {
        steps.push(match next {
            Normalizer::Sequence { normalizers } => {
                left.extend(normalizers.iter().rev());
                continue;
            }
            Normalizer::Prepend { prepend } if prepend.len() <= MAX_PREFIX_BYTES => {
                TextChange::Prepend(prepend.clone())
            }
            Normalizer::Replace { pattern: Pattern::Regex(from), content: to }
                if from == " {2,}" && to.len() <= 8 =>
            {
                TextChange::Runs(to.clone())
            }
            Normalizer::Replace { pattern: Pattern::String(from), content: to }
                if !from.is_empty() && to.len() <= 4 * from.len() =>
            {
                TextChange::Replace(from.clone(), to.clone())
            }
            Normalizer::Prepend { .. } => {
                return Err(reader.unsupported("a normalizer that prepends a long text"));
            }
            Normalizer::Replace { .. } => {
                return Err(
                    reader.unsupported("a normalizer that replaces by expressions or by much longer texts")
                );
            }
            Normalizer::Strip { strip_left, strip_right } => {
                TextChange::Strip { left: *strip_left, right: *strip_right }
            }
            Normalizer::Precompiled { precompiled_charsmap } => {
                let bytes = base64::decode(precompiled_charsmap).map_err(|error| error.to_string());
                let map = bytes.and_then(|bytes| CharacterMap::parse(&bytes));
                let wrong = |cause| reader.wrong(format!("has a character map: {cause}"));
                TextChange::MapByCluster(Arc::new(map.map_err(wrong)?))
            }
            Normalizer::Nfc => TextChange::Nfc,
            Normalizer::Nfkc => TextChange::Nfkc,
        });
        if steps.len() > MAX_STEPS {
            return Err(reader.unsupported(format!("more than {MAX_STEPS} normalisers")));
        }
    }
    Ok(Normaliser { steps, prefix_once: false })
}
