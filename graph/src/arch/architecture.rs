//! Properties in which architectures differ, and their most common values.

use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{self, HEAD, Names};
use super::rope::RopePairing;
use super::transformer::{self, Layer};
use crate::builder::Builder;
use crate::error::ModelError;
use crate::graph::OperatorGraph;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::TensorType;
use std::borrow::Cow;

/// A family of models with a common graph structure.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Values of `general.architecture` for the text parts of multimodal models. They have more keys, which say where
    /// images are. Text has the same numbers without them.
    pub multimodal_names: &'static [&'static str],
    /// Names of the model classes that `config.json` lists under `architectures`.
    pub classes: &'static [&'static str],
    /// Names of the classes of multimodal models whose text part has this architecture. Ragtag reads only this
    /// part, which `text_config` in `config.json` describes.
    pub multimodal_classes: &'static [&'static str],
    /// RoPE pairing that matches the order of the query and key projections in GGUF files.
    pub gguf_pairing: RopePairing,
    /// RoPE pairing that matches their order in checkpoints.
    pub checkpoint_pairing: RopePairing,
    /// Whether `partial_rotary_factor` in `config.json` says which part of a head rotates.
    pub(crate) has_partial_rotation: bool,
    /// Order of the matrices of experts in checkpoints.
    pub(crate) expert_order: ExpertOrder,
    /// Order of these matrices in checkpoints of multimodal models.
    pub(crate) multimodal_expert_order: ExpertOrder,
    /// Fields of `config.json` with other names than usual: the name in this class, and the usual one.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Fields of `config.json` whose defaults change results, and the values that `transformers` uses for
    /// this class if a field is missing.
    pub(crate) defaults: &'static [(&'static str, Setting)],
    /// Fields of `config.json` that give projections biases: `attention_bias`, `mlp_bias`, or none.
    pub(crate) biases: &'static [&'static str],
    /// Field of `config.json` with the constant that norms add.
    pub(crate) epsilon: &'static str,
    /// Field of `config.json` with the function of the feed-forward network, and the names that this function
    /// may have.
    pub(crate) activation: (&'static str, &'static [&'static str]),
    /// Function that reads the hyperparameters that only some architectures have.
    pub(crate) read: fn(&Keys<'_>, &mut Hyperparameters) -> Result<(), ModelError>,
    /// Function that returns the structure of the layer with a given index.
    pub(super) layer: fn(&Hyperparameters, u32) -> Layer,
    /// Tables that map the tensor names in checkpoints to GGUF names.
    pub(super) tensors: &'static [&'static [Names]],
}

/// Order of the values of a matrix of experts, and of the rows of gates and up projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertOrder {
    /// Row after row, all gates of an expert before its up projections.
    Rows,
    /// Column after column, all gates of an expert before its up projections.
    Columns,
    /// Column after column. Gates and up projections take turns. Only MXFP4 matrices are row after row.
    ColumnsInTurn,
}

/// Fields for the biases of attention and of the feed-forward network.
pub(super) const BIASES: &[&str] = &["attention_bias", "mlp_bias"];
/// Field for the biases of attention.
pub(super) const ATTENTION_BIAS: &[&str] = &["attention_bias"];

/// Default of `tie_word_embeddings` in some classes. In others, it is false.
pub(super) const TIED: (&str, Setting) = ("tie_word_embeddings", Setting::Flag(true));

/// Default of `rms_norm_eps` in most classes.
pub(super) const EPSILON: (&str, Setting) = ("rms_norm_eps", Setting::Number(1e-6));

/// Returns the default of `num_key_value_heads`. In some classes, it is the number of heads.
pub(super) const fn kv_heads(count: u32) -> (&'static str, Setting) {
    ("num_key_value_heads", Setting::Count(count))
}

/// Returns the default of `sliding_window`.
pub(super) const fn sliding_window(positions: u32) -> (&'static str, Setting) {
    ("sliding_window", Setting::Count(positions))
}

/// Returns the default of `rope_theta`. In most classes, it is 10 000.
pub(super) const fn rope_base(base: f64) -> (&'static str, Setting) {
    ("rope_theta", Setting::Number(base))
}

/// Names of SiLU in `config.json`.
pub(super) const SILU: (&str, &[&str]) = ("hidden_act", &["silu", "swish"]);

/// An architecture with the properties that most of them share.
pub(super) const USUAL: Architecture = Architecture {
    name: "",
    multimodal_names: &[],
    classes: &[],
    multimodal_classes: &[],
    gguf_pairing: RopePairing::Halves,
    checkpoint_pairing: RopePairing::Halves,
    has_partial_rotation: false,
    expert_order: ExpertOrder::Rows,
    multimodal_expert_order: ExpertOrder::Rows,
    aliases: &[],
    defaults: &[EPSILON],
    biases: &[],
    epsilon: "rms_norm_eps",
    activation: SILU,
    read: |_, _| Ok(()),
    layer: Layer::plain,
    tensors: &[names::COMMON, names::NORMS, names::GATED],
};

impl Architecture {
    /// Builds the operator graph.
    ///
    /// # Errors
    /// Fails if a required tensor is missing or has the wrong shape, or if the architecture does not use one
    /// of the model's tensors.
    pub fn build(
        &self,
        hyperparameters: &Hyperparameters,
        weights: &Weights,
    ) -> Result<OperatorGraph, ModelError> {
        let mut builder = Builder::new(weights);
        transformer::build(self.layer, hyperparameters, weights.tensor(HEAD).is_some(), &mut builder)?;
        builder.finish()
    }

    /// Returns the tensors of a model with these hyperparameters. If `is_tied` is true, the embedding also
    /// serves as the projection to logits. Matrices have the type `matrices`, and vectors have the type
    /// `vectors`.
    pub(crate) fn describe(
        &self,
        hyperparameters: &Hyperparameters,
        is_tied: bool,
        matrices: TensorType,
        vectors: TensorType,
    ) -> Result<Vec<TensorInfo>, ModelError> {
        let mut builder = Builder::describing(matrices, vectors);
        transformer::build(self.layer, hyperparameters, !is_tied, &mut builder)?;
        Ok(builder.described())
    }

    /// Returns the name that a checkpoint of the text part alone has for the tensor that a checkpoint calls
    /// `name`. Returns `None` if the tensor belongs to another part of a multimodal model.
    pub(crate) fn name_in_text_part<'a>(&self, name: &'a str) -> Option<Cow<'a, str>> {
        if self.multimodal_classes.is_empty() { Some(name.into()) } else { names::in_text_part(name) }
    }

    /// Returns the graph's name for the tensor that checkpoints call `name`, if the architecture has this
    /// tensor.
    pub(crate) fn name_in_graph(&self, name: &str) -> Option<String> {
        names::in_graph(self.tensors, name)
    }

    /// Returns the name that checkpoints use for the tensor called `name` in the graph.
    pub(crate) fn name_in_checkpoint(&self, name: &str) -> String {
        names::in_checkpoint(self.tensors, name)
    }
}
