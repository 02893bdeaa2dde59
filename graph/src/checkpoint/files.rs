//! Names of the files of a model directory.

/// Files that the caller opens if they exist, in addition to the shards that [`shard_names`](super::shard_names) returns.
pub const FILES: [&str; 11] = [
    CONFIG,
    GENERATION_CONFIG,
    MODEL,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    SENTENCEPIECE,
    ADDED_TOKENS,
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_JSON,
];

/// Entries of [`FILES`] that contain or list weights. A directory without these files describes a model but
/// has no weights.
pub const WEIGHTS: [&str; 2] = [MODEL, INDEX];

/// File with the hyperparameters.
pub(crate) const CONFIG: &str = "config.json";
/// File with generation defaults, including the EOS tokens.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// File that maps tensor names to shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// File with all weights of a model that is not sharded.
pub(crate) const MODEL: &str = "model.safetensors";
/// File with the tokenizer in the format of the `tokenizers` library.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// File with settings for the tokens that the tokenizer adds to a text.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// File that names special tokens, which older versions of `transformers` write.
pub(crate) const SPECIAL_TOKENS: &str = "special_tokens_map.json";
/// File with the tokenizer in the format of the sentencepiece library.
pub(crate) const SENTENCEPIECE: &str = "tokenizer.model";

/// File with the ids of tokens that were added to those of a `tokenizer.model`. Newer models list them in
/// [`TOKENIZER_CONFIG`].
pub(crate) const ADDED_TOKENS: &str = "added_tokens.json";

/// File with the source of a chat template.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// File with the source of a chat template in a JSON object.
pub(crate) const CHAT_TEMPLATE_JSON: &str = "chat_template.json";

/// Size limit, in bytes, of small JSON files such as `config.json`.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;
