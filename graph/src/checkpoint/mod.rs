//! Models as directories in Hugging Face's layout: `config.json`, weights in one safetensors file or several
//! with an index, and the tokenizer's files.
//!
//! Tensors get their GGUF names, so that each architecture is written once. The caller opens the files that
//! [`FILES`] and then [`shard_names`] list.
//!
//! Knows nothing about tokenizers.

mod config;
mod described;
mod index;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use index::shard_names;

pub(crate) use config::Fields;
pub(crate) use described::describe;

use crate::arch::{Architecture, HEAD, Hyperparameters, is_derived};
use crate::error::{FormatError, Quoted};
use crate::model::ModelError;
use crate::safetensors;
use crate::source::{Directory, Source};
use crate::weights::{TensorInfo, Weights};
use std::sync::Arc;

/// Files of a directory to open where they exist, in addition to the shards of [`shard_names`].
pub const FILES: [&str; 7] =
    [CONFIG, GENERATION_CONFIG, MODEL, INDEX, TOKENIZER, TOKENIZER_CONFIG, SENTENCEPIECE];

/// Files among them that hold or list weights. Without them, a directory only describes a model.
pub const WEIGHTS: [&str; 2] = [MODEL, INDEX];

/// Hyperparameters.
pub(crate) const CONFIG: &str = "config.json";
/// Generation defaults, including the end-of-text tokens.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// Maps tensors to shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Weights, if they are in one file.
pub(crate) const MODEL: &str = "model.safetensors";
/// Tokenizer in the format of the `tokenizers` library.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Tokens that the tokenizer adds to a text.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Tokenizer in the format of the sentencepiece library.
pub(crate) const SENTENCEPIECE: &str = "tokenizer.model";

/// Size limit of the small files: hyperparameters, and tables of a few thousand names.
pub(crate) const MOST_CONFIG_BYTES: u64 = 16 << 20;

/// Returns the architecture, hyperparameters and weights of a model's directory.
pub(crate) fn open(
    directory: &Directory,
) -> Result<(&'static Architecture, Hyperparameters, Weights), ModelError> {
    let (architecture, hyperparameters, tied) = config::read(directory)?;
    let names = shard_names(directory)?;
    let shards = shards(directory, &names)?;
    let tensors = tensors(architecture, directory, &names, &shards)?;
    let weights = Weights::new(shards, tensors)?;
    // A model without its own head uses the embedding, and `config.json` must say so.
    let head = || architecture.name_in_checkpoint(HEAD);
    match (tied, weights.tensor(HEAD).is_some()) {
        (true, true) => Err(ModelError::Unsupported {
            what: format!("{} beside tie_word_embeddings in {CONFIG}", head()),
        }),
        (false, false) => Err(ModelError::MissingTensor { name: head() }),
        _ => Ok((architecture, hyperparameters, weights)),
    }
}

fn shards(directory: &Directory, names: &[String]) -> Result<Vec<Arc<dyn Source>>, FormatError> {
    let missing = |file: &str| FormatError::MissingFile {
        directory: directory.name().to_owned(),
        file: file.to_owned(),
    };
    names.iter().map(|name| directory.file(name).cloned().ok_or_else(|| missing(name))).collect()
}

/// Returns the tensors of all shards, under the graph's names.
fn tensors(
    architecture: &Architecture,
    directory: &Directory,
    names: &[String],
    shards: &[Arc<dyn Source>],
) -> Result<Vec<TensorInfo>, ModelError> {
    let mut found = Vec::new();
    for (shard, source) in shards.iter().enumerate() {
        found.extend(safetensors::parse(source.as_ref(), shard)?);
    }
    index::check(directory, names, &found)?;
    let mut tensors = Vec::new();
    for tensor in found {
        match architecture.name_in_graph(&tensor.name) {
            Some(name) => tensors.push(TensorInfo { name, ..tensor }),
            None if is_derived(&tensor.name) => {}
            None => {
                let name = Quoted(&tensor.name).to_string();
                return Err(ModelError::UnknownTensor { name });
            }
        }
    }
    Ok(tensors)
}

/// Replaces the graph's tensor names in an error by those of the user's file.
pub(crate) fn with_original_names(architecture: &Architecture, error: ModelError) -> ModelError {
    let original = |name: String| architecture.name_in_checkpoint(&name);
    match error {
        ModelError::MissingTensor { name } => ModelError::MissingTensor { name: original(name) },
        ModelError::UnknownTensor { name } => ModelError::UnknownTensor { name: original(name) },
        ModelError::Shape { name, expected, found } => {
            ModelError::Shape { name: original(name), expected, found }
        }
        other => other,
    }
}
