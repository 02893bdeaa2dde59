//! Models as directories in the layout of Hugging Face: `config.json`, weights in safetensors, one file or several with
//! an index, and the tokenizer's files.
//!
//! Tensors get the names that GGUF files give them, so that an architecture is written once. Whoever opens the files
//! asks here which: [`FILES`], then [`shard_names`].
//!
//! This module must not know any tokenizer.

mod config;
mod described;
mod index;
mod names;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use index::shard_names;

pub(crate) use config::Fields;
pub(crate) use described::describe;
pub(crate) use names::with_original_names;

use crate::arch::{Architecture, Hyperparameters};
use crate::error::{FormatError, Quoted};
use crate::model::ModelError;
use crate::safetensors;
use crate::source::{Directory, Source};
use crate::weights::{TensorInfo, Weights};
use std::sync::Arc;

/// The files of a directory to open where they exist. The shards of [`shard_names`] come on top.
pub const FILES: [&str; 7] =
    [CONFIG, GENERATION_CONFIG, MODEL, INDEX, TOKENIZER, TOKENIZER_CONFIG, SENTENCEPIECE];

/// Those of them that hold weights, or say which do; without any, there is a description alone.
pub const WEIGHTS: [&str; 2] = [MODEL, INDEX];

/// Hyperparameters.
pub(crate) const CONFIG: &str = "config.json";
/// Where generation ends.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// Which shard holds which tensor.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The weights, if they are in one file.
pub(crate) const MODEL: &str = "model.safetensors";
/// The tokenizer, as the `tokenizers` library writes it.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// What the tokenizer adds to a text.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The tokenizer, as the sentencepiece library writes it.
pub(crate) const SENTENCEPIECE: &str = "tokenizer.model";

/// Most bytes of the small files: hyperparameters, and tables of a few thousand names.
pub(crate) const MOST_CONFIG_BYTES: u64 = 16 << 20;

/// The architecture, hyperparameters and weights of a model's directory.
pub(crate) fn open(
    directory: &Directory,
) -> Result<(&'static Architecture, Hyperparameters, Weights), ModelError> {
    let (architecture, hyperparameters, tied) = config::read(directory)?;
    let names = shard_names(directory)?;
    let shards = shards(directory, &names)?;
    let tensors = tensors(directory, &names, &shards)?;
    let weights = Weights::new(shards, tensors)?;
    // Without a head of its own a model takes the embedding, which must be what it wants.
    match (tied, weights.tensor(names::HEAD).is_some()) {
        (true, true) => Err(ModelError::Unsupported {
            what: format!("{} beside tie_word_embeddings in {CONFIG}", names::original(names::HEAD)),
        }),
        (false, false) => Err(ModelError::MissingTensor { name: names::HEAD.into() }),
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

/// The tensors of all shards, under the graph's names.
fn tensors(
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
        match names::in_graph(&tensor.name) {
            names::Name::Tensor(name) => tensors.push(TensorInfo { name, ..tensor }),
            names::Name::Derived => {}
            names::Name::Unknown => {
                let name = Quoted(&tensor.name).to_string();
                return Err(ModelError::UnknownTensor { name });
            }
        }
    }
    Ok(tensors)
}
