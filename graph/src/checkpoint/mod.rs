//! Reads models from directories in Hugging Face's layout. Such a directory contains `config.json`, tokenizer
//! files, and weights in one safetensors file or in several with an index.
//!
//! Tensors are renamed to their GGUF names, so that each architecture needs only one implementation. The
//! caller opens the files in [`FILES`] first, and then the files that [`shard_names`] returns.

mod config;
mod described;
mod experts;
pub(crate) mod fields;
mod files;
mod index;
mod quantization;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use files::{FILES, WEIGHTS};
pub use index::shard_names;

pub(crate) use described::describe;
pub(crate) use fields::Fields;
pub(crate) use files::{
    ADDED_TOKENS, CHAT_TEMPLATE, CHAT_TEMPLATE_JSON, CONFIG, GENERATION_CONFIG, MAX_CONFIG_BYTES,
    SENTENCEPIECE, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG,
};

use crate::arch::{Architecture, ExpertOrder, HEAD, Hyperparameters, is_derived, is_predictor};
use crate::error::{ModelError, Quoted};
use crate::safetensors::{self, Stored};
use crate::source::{Directory, Source};
use crate::weights::{TensorInfo, Weights};
use quantization::Tensors;
use std::borrow::Cow;
use std::sync::Arc;

/// Names and sizes of tensors that predict further tokens, and that are apart from the layers.
type Predictors = Vec<(String, u64)>;

/// Reads the architecture, hyperparameters and weights from a model directory.
pub(crate) fn open(
    directory: &Directory,
) -> Result<(&'static Architecture, Hyperparameters, Weights, Predictors), ModelError> {
    let (architecture, hyperparameters, tied) = config::read(directory)?;
    let names = shard_names(directory)?;
    let mut sources = names.iter().map(|name| directory.required(name).cloned()).collect::<Result<_, _>>()?;
    let (tensors, predictors) = tensors(architecture, directory, &names, &mut sources)?;
    let weights = Weights::new(sources, tensors)?;
    // If the head has no tensor of its own, `config.json` must tie it to the embedding. A tensor of its own
    // counts even if it does, as in `transformers`.
    if tied || weights.tensor(HEAD).is_some() {
        return Ok((architecture, hyperparameters, weights, predictors));
    }
    Err(ModelError::MissingTensor { name: architecture.name_in_checkpoint(HEAD) })
}

/// Returns the tensors of all shards, renamed to their names in the graph. Adds the sources of converted
/// tensors to the shards in `sources`.
fn tensors(
    architecture: &Architecture,
    directory: &Directory,
    names: &[String],
    sources: &mut Vec<Arc<dyn Source>>,
) -> Result<(Vec<TensorInfo>, Predictors), ModelError> {
    let mut found = Vec::new();
    for (shard, source) in sources.iter().enumerate() {
        found.extend(safetensors::parse(source.as_ref(), shard)?);
    }
    index::check(directory, names, &found)?;
    let (shards, quantization) = (sources.clone(), config::quantization(directory)?);
    let order = expert_order(architecture, &found);
    let mut quantized = Tensors::new(quantization.as_ref(), order, &shards, &found);
    let (mut tensors, mut predictors, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in &found {
        let Some(name) = architecture.name_in_text_part(&tensor.name) else { continue };
        match architecture.name_in_graph(quantized.stem(&name)) {
            Some(name) => tensors.push(quantized.add(tensor, name, sources)?),
            None if is_derived(&name) => {}
            None if is_predictor(&name) => predictors.push((name.into_owned(), tensor.bytes)),
            None => others.push(tensor),
        }
    }
    match others.into_iter().find(|tensor| !quantized.is_used(&tensor.name)) {
        Some(tensor) => Err(ModelError::UnknownTensor { name: Quoted(&tensor.name).to_string() }),
        None => Ok((tensors, predictors)),
    }
}

/// Returns the order of the matrices of experts. Version 5 of `transformers` writes rows where published checkpoints of
/// multimodal models have columns, so the shapes decide.
fn expert_order(architecture: &Architecture, tensors: &[Stored]) -> ExpertOrder {
    let is_part =
        |tensor: &Stored| matches!(architecture.name_in_text_part(&tensor.name), Some(Cow::Owned(_)));
    if !tensors.iter().any(is_part) {
        return architecture.expert_order;
    }
    let is_called = |tensor: &&Stored, start: &str, end: &str| {
        let name = architecture.name_in_text_part(&tensor.name);
        let name = name.and_then(|name| architecture.name_in_graph(&name));
        name.is_some_and(|name| name.starts_with(start) && name.ends_with(end))
    };
    let shape = |start: &str, end: &str| {
        let found = tensors.iter().find(|tensor| is_called(tensor, start, end));
        found.map(|tensor| tensor.shape.as_slice())
    };
    let width = match shape("output_norm", ".weight") {
        Some([width]) => *width,
        _ => return architecture.multimodal_expert_order,
    };
    // Gates and up projections have `width` columns, and down projections have as many rows. One of the two is not square.
    let [gates, downs] = ["gate_up", "down"].map(|part| shape("blk.", &format!(".ffn_{part}_exps.weight")));
    let are_rows = matches!(gates, Some([columns, rows, _]) if *columns == width && *rows != width)
        || matches!(downs, Some([columns, rows, _]) if *rows == width && *columns != width);
    if are_rows { ExpertOrder::Rows } else { architecture.multimodal_expert_order }
}

/// Returns `error` with the tensor names from the user's files instead of the graph's names.
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
