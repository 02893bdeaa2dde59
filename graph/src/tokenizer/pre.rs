//! Pre-tokenizers for byte-level vocabularies, selected by the name in `tokenizer.ggml.pre`.
//!
//! Each regular expression splits the words that the previous expressions produced. Both the matches and the
//! text between matches become words. The names are those of llama.cpp. The expressions come from the
//! original tokenizers.

use super::words::{Cut, Cuts};
use crate::error::{Quoted, TokenizerError};
use fancy_regex::Regex;
use tokenizers::SplitDelimiterBehavior;

/// A pre-tokenizer with its settings.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    expressions: &'static [&'static str],
    /// Whether a word that equals the text of a token becomes this token without any merging.
    pub(super) whole_words: bool,
    /// Default for `add_bos_token`, if the metadata lacks this key.
    pub(super) add_bos: bool,
}

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
/// Letters with case. Singletons of normalisation are escaped, so that no editor changes them.
const CASED_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

/// All supported pre-tokenizers.
static TABLE: [PreTokenizer; 22] = [
    PreTokenizer {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
            "jina-v5-nano",
        ],
        expressions: &[LLAMA3],
        whole_words: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"],
        expressions: &[LLAMA3],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "granite-docling",
        ],
        expressions: &[GPT2],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "kormo",
            "f2llmv2",
            "solar-open",
            "grok-2",
        ],
        expressions: &[QWEN2],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        expressions: &[r"\p{N}", GPT2],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["falcon"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer { names: &["tekken"], expressions: &[TEKKEN], whole_words: true, add_bos: true },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        expressions: &[GPT4O],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        expressions: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        expressions: &[
            r"[\r\n]",
            CASED_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        ],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        expressions: &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer { names: &["qwen35"], expressions: &[QWEN35], whole_words: false, add_bos: false },
    PreTokenizer {
        names: &["viking"],
        expressions: &[" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}"],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["bloom", "gpt3-finnish", "poro-chat"],
        expressions: &[" ?[^(\\s|.,!?…。，、।۔،)]+"],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer { names: &["jais-2"], expressions: &[JAIS2], whole_words: false, add_bos: false },
    PreTokenizer {
        names: &["minicpm5"],
        expressions: &[r"\p{N}{1,3}", MINICPM5],
        whole_words: true,
        add_bos: false,
    },
    PreTokenizer {
        names: &["youtu"],
        expressions: &["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+", YOUTU],
        whole_words: true,
        add_bos: false,
    },
    PreTokenizer { names: &["seed-coder"], expressions: &[SEED_CODER], whole_words: false, add_bos: false },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        expressions: &[BAILING],
        whole_words: false,
        add_bos: false,
    },
    PreTokenizer { names: &["exaone-moe"], expressions: &[EXAONE_MOE], whole_words: false, add_bos: false },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        expressions: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        whole_words: false,
        add_bos: false,
    },
];

impl PreTokenizer {
    /// Returns the pre-tokenizer called `name`. Old files have no name; llama.cpp's default is then a guess.
    pub(super) fn find(file: &str, name: Option<&str>) -> Result<&'static PreTokenizer, TokenizerError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| {
            tracing::warn!(
                file,
                "no tokenizer.ggml.pre; splitting text into words by the rules of \"default\""
            );
            "default"
        });
        TABLE.iter().find(|row| row.names.contains(&name)).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().flat_map(|row| row.names).copied().collect();
            TokenizerError::UnknownPreTokenizer {
                file: file.to_owned(),
                found: Quoted(name).to_string(),
                known: known.join(", "),
            }
        })
    }

    /// Builds the cuts that split text into words. The last cut maps bytes to characters.
    pub(super) fn build(&self) -> Result<Cuts, tokenizers::Error> {
        let split = |expression: &&str| {
            Ok(Cut::expression(Regex::new(expression)?, SplitDelimiterBehavior::Isolated, false))
        };
        let cuts = self.expressions.iter().map(split).chain([Ok(Cut::letters())]);
        cuts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn table_names_are_unique_and_expressions_compile() {
        let names: Vec<&str> = TABLE.iter().flat_map(|row| row.names).copied().collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
        for name in names {
            PreTokenizer::find("m.gguf", Some(name)).unwrap().build().unwrap();
        }
    }
    #[test]
    fn the_page_lists_the_names_with_the_same_rules_together() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/formats.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, list) = page.split_once("`tokenizer.ggml.pre` accepts these names.").unwrap();
        let listed: Vec<&str> = list.lines().skip(2).take_while(|line| !line.is_empty()).collect();
        let quoted =
            |row: &PreTokenizer| row.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let rows: Vec<String> = TABLE.iter().map(|row| format!("- {}", quoted(row).join(", "))).collect();
        assert_eq!(listed, rows, "docs/formats.md");
    }
}
