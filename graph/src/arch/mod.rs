//! Table of architectures. A new architecture needs a file in this folder and a row in [`ARCHITECTURES`].

mod bitnet;
mod command_r;
mod extras;
mod gemma2;
mod gemma3;
mod glm4;
mod granite;
mod hyperparameters;
mod llama;
mod mistral;
mod names;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;
mod rope_scaling;
mod smollm3;
mod starcoder2;
mod transformer;

pub use extras::{Extras, LayerSet};
pub use hyperparameters::Hyperparameters;
pub use rope::{DynamicScaling, Llama3Scaling, Rope, RopeFactors, RopePairing, Yarn};
pub use rope_scaling::{RopeScaling, RopeScalingError};

pub(crate) use extras::{Keys, Setting};
pub(crate) use hyperparameters::{in_range, positive};
pub(crate) use names::{HEAD, LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, is_derived};

use crate::builder::Builder;
use crate::error::{ModelError, Quoted};
use crate::op::OperatorGraph;
use crate::weights::{TensorInfo, Weights};
use names::Names;
use ragtag_kernels::TensorType;
use std::borrow::Cow;
use transformer::Layer;

/// A family of models with a common graph structure.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
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
    layer: fn(&Hyperparameters, u32) -> Layer,
    /// Tables that map the tensor names in checkpoints to GGUF names.
    tensors: &'static [&'static [Names]],
}

/// All supported architectures.
pub static ARCHITECTURES: [&Architecture; 15] = [
    &llama::LLAMA,
    &bitnet::BITNET,
    &bitnet::BITNET_B158,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &mistral::MISTRAL,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &phi3::PHI3,
    &granite::GRANITE,
    &olmo2::OLMO2,
    &smollm3::SMOLLM3,
    &glm4::GLM4,
    &command_r::COMMAND_R,
    &starcoder2::STARCODER2,
];

/// Fields for the biases of attention and of the feed-forward network.
const BIASES: &[&str] = &["attention_bias", "mlp_bias"];
/// Field for the biases of attention.
const ATTENTION_BIAS: &[&str] = &["attention_bias"];

/// Default of `tie_word_embeddings` in some classes. In others, it is false.
const TIED: (&str, Setting) = ("tie_word_embeddings", Setting::Flag(true));

/// Default of `rms_norm_eps` in most classes.
const EPSILON: (&str, Setting) = ("rms_norm_eps", Setting::Number(1e-6));

/// Returns the default of `num_key_value_heads`. In some classes, it is the number of heads.
const fn kv_heads(count: u32) -> (&'static str, Setting) {
    ("num_key_value_heads", Setting::Count(count))
}

/// Returns the default of `sliding_window`.
const fn sliding_window(positions: u32) -> (&'static str, Setting) {
    ("sliding_window", Setting::Count(positions))
}

/// Returns the default of `rope_theta`. In most classes, it is 10 000.
const fn rope_base(base: f64) -> (&'static str, Setting) {
    ("rope_theta", Setting::Number(base))
}

/// Names of SiLU in `config.json`.
const SILU: (&str, &[&str]) = ("hidden_act", &["silu", "swish"]);

/// An architecture with the properties that most of them share.
const USUAL: Architecture = Architecture {
    name: "",
    classes: &[],
    multimodal_classes: &[],
    gguf_pairing: RopePairing::Halves,
    checkpoint_pairing: RopePairing::Halves,
    has_partial_rotation: false,
    defaults: &[EPSILON],
    biases: &[],
    epsilon: "rms_norm_eps",
    activation: SILU,
    read: |_, _| Ok(()),
    layer: Layer::plain,
    tensors: &[names::COMMON, names::NORMS, names::GATED],
};

impl Architecture {
    /// Returns the architecture called `name`.
    ///
    /// # Errors
    /// Returns [`ModelError::Architecture`] with the known names if `name` is unknown.
    pub fn find(name: &str) -> Result<&'static Architecture, ModelError> {
        ARCHITECTURES.into_iter().find(|a| a.name == name).ok_or_else(|| ModelError::Architecture {
            name: name.into(),
            known: ARCHITECTURES.map(|a| a.name).join(", "),
        })
    }

    /// Returns the architecture for the model class of a checkpoint.
    ///
    /// # Errors
    /// Returns [`ModelError::Architecture`] with the known classes if `class` is unknown.
    pub fn of_class(class: &str) -> Result<&'static Architecture, ModelError> {
        let classes = |a: &'static Architecture| a.classes.iter().chain(a.multimodal_classes).copied();
        let known: Vec<&str> = ARCHITECTURES.into_iter().flat_map(classes).collect();
        let found = ARCHITECTURES.into_iter().find(|a| classes(a).any(|known| known == class));
        found.ok_or_else(|| ModelError::Architecture {
            name: Quoted(class).to_string(),
            known: known.join(", "),
        })
    }

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
        transformer::build(self, hyperparameters, weights.tensor(HEAD).is_some(), &mut builder)?;
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
        transformer::build(self, hyperparameters, !is_tied, &mut builder)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::Shape;
    use crate::weights::{TensorInfo, Weights};
    use ragtag_kernels::TensorType;

    #[test]
    fn each_rotating_pair_has_a_rope_factor() {
        // Each head has 32 values.
        let shape = Shape { layers: 1, width: 64, ffn: 64, heads: 2, kv_heads: 1, vocabulary: 32 };
        let model = shape.without_bytes(|_| TensorType::Q4_0);
        let mut h = model.hyperparameters().clone();
        h.rope.factors = RopeFactors::File;
        let build = |factors: u64| {
            let mut tensors = model.weights().tensors().to_vec();
            let (name, shape) = ("rope_freqs.weight".into(), vec![factors]);
            let (tensor_type, bytes) = (TensorType::F32, factors * 4);
            tensors.push(TensorInfo { name, tensor_type, shape, shard: 0, offset: 0, bytes });
            let weights = Weights::new(vec![], tensors).unwrap();
            llama::LLAMA.build(&h, &weights).map(|_| ())
        };
        assert!(build(16).is_ok());
        for wrong in [0, 15, 17] {
            let Err(ModelError::Shape { expected, found, .. }) = build(wrong) else { panic!("{wrong}") };
            assert_eq!((expected, found), (vec![16], vec![wrong]));
        }
    }
}
