//! Models as directories in Hugging Face's layout: `config.json`, the tokenizer's files, and weights in one
//! safetensors file or in several with an index.
//!
//! Tensors get their GGUF names, so that each architecture needs only one implementation. The caller opens
//! the files listed by [`FILES`] and then by [`shard_names`].

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

/// Files to open if the directory contains them, in addition to the shards of [`shard_names`].
pub const FILES: [&str; 7] =
    [CONFIG, GENERATION_CONFIG, MODEL, INDEX, TOKENIZER, TOKENIZER_CONFIG, SENTENCEPIECE];

/// Files of [`FILES`] that hold or list weights. A directory without these files only describes a model.
pub const WEIGHTS: [&str; 2] = [MODEL, INDEX];

/// Hyperparameters.
pub(crate) const CONFIG: &str = "config.json";
/// Generation defaults, including the end-of-text tokens.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// Index that maps tensor names to shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Weights of a model that is not sharded.
pub(crate) const MODEL: &str = "model.safetensors";
/// Tokenizer in the format of the `tokenizers` library.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Settings for the tokens that the tokenizer adds to a text.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Tokenizer in the format of the sentencepiece library.
pub(crate) const SENTENCEPIECE: &str = "tokenizer.model";

/// Size limit of small JSON files, such as `config.json`.
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
    // If the head has no tensor of its own, `config.json` must tie it to the embedding.
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

/// Returns the tensors of all shards under their names in the graph.
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
