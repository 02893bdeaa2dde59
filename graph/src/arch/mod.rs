//! Table of architectures. A new architecture needs a file in this folder and a row in [`ARCHITECTURES`].

mod apertus;
mod architecture;
mod bitnet;
mod command_r;
mod deepseek2;
mod ernie4_5_moe;
mod exaone4;
mod experts;
mod extras;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod hunyuan;
pub(crate) mod hyperparameters;
mod keys;
mod kimi_linear;
mod latent;
mod lfm2;
mod llama;
mod llama4;
mod metadata;
mod minimax_m2;
mod mistral;
mod mistral4;
mod mixtral;
mod names;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen35;
mod qwen3_moe;
mod recurrent;
pub(crate) mod rope;
mod rope_scaling;
mod seed_oss;
mod smollm3;
mod starcoder2;
mod transformer;

pub use architecture::Architecture;
pub(crate) use architecture::ExpertOrder;
pub use experts::Experts;
pub use extras::{Extras, LayerSet};
pub use hyperparameters::Hyperparameters;
pub use latent::{Growth, Indexer, Latent};
pub use recurrent::Recurrent;
pub use rope::{DynamicScaling, Llama3Scaling, Rope, RopeFactors, RopePairing, Yarn};
pub use rope_scaling::{RopeScaling, RopeScalingError};

pub(crate) use hyperparameters::positive;
pub(crate) use keys::Keys;
pub(crate) use names::{
    HEAD, LAYER_PROJECTION, LAYER_TABLE, LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, is_derived, is_predictor,
    layer_of,
};

use crate::error::{ModelError, Quoted};

/// All supported architectures.
pub static ARCHITECTURES: [&Architecture; 45] = [
    &llama::LLAMA,
    &bitnet::BITNET,
    &bitnet::BITNET_B158,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &mistral::MISTRAL,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gemma4::GEMMA4,
    &phi3::PHI3,
    &granite::GRANITE,
    &olmo2::OLMO2,
    &olmo2::OLMO3,
    &smollm3::SMOLLM3,
    &glm4::GLM4,
    &command_r::COMMAND_R,
    &starcoder2::STARCODER2,
    &seed_oss::SEED_OSS,
    &exaone4::EXAONE4,
    &hunyuan::HUNYUAN_DENSE,
    &apertus::APERTUS,
    &llama4::LLAMA4,
    &mixtral::MIXTRAL,
    &qwen2_moe::QWEN2_MOE,
    &qwen3_moe::QWEN3_MOE,
    &olmoe::OLMOE,
    &granite_moe::GRANITE_MOE,
    &glm4_moe::GLM4_MOE,
    &minimax_m2::MINIMAX_M2,
    &ernie4_5_moe::ERNIE4_5_MOE,
    &deepseek2::DEEPSEEK2,
    &deepseek2::DEEPSEEK3,
    &deepseek2::DEEPSEEK32,
    &deepseek2::GLM4_MOE_LITE,
    &mistral4::MISTRAL4,
    &gpt_oss::GPT_OSS,
    &qwen35::QWEN35,
    &qwen35::QWEN35_MOE,
    &qwen35::QWEN3_NEXT,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &granite_hybrid::GRANITE_HYBRID,
    &nemotron_h::NEMOTRON_H,
    &nemotron_h::NEMOTRON_H_MOE,
    &kimi_linear::KIMI_LINEAR,
];

impl Architecture {
    /// Returns the architecture called `name`.
    ///
    /// # Errors
    /// Returns [`ModelError::Architecture`] with the known names if `name` is unknown.
    pub fn find(name: &str) -> Result<&'static Architecture, ModelError> {
        let is_called = |a: &&Architecture| a.name == name || a.multimodal_names.contains(&name);
        ARCHITECTURES.into_iter().find(is_called).ok_or_else(|| ModelError::Architecture {
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

    /// Returns the architecture of a multimodal model's text part, whose type is `model_type`. A class may wrap several
    /// architectures. This one is for types that no other has as its name.
    pub(crate) fn of_text_part(
        &'static self,
        class: &str,
        model_type: Option<&str>,
    ) -> &'static Architecture {
        let wraps = |a: &&Architecture| a.multimodal_classes.contains(&class) && Some(a.name) == model_type;
        ARCHITECTURES.into_iter().find(wraps).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::Shape;
    use crate::weights::{TensorInfo, Weights};
    use ragtag_kernels::TensorType;

    #[test]
    fn windows_beside_states_are_unsupported() {
        let shape = Shape { layers: 2, width: 64, ffn: 64, heads: 2, kv_heads: 1, vocabulary: 32 };
        let mut h = shape.without_bytes(|_| TensorType::Q4_0).hyperparameters().clone();
        (h.extras.window, h.extras.windowed_layers) = (Some(8), LayerSet::Every(2));
        h.extras.recurrent = Some(Recurrent::ShortConv { taps: 3 });
        let check = |h: &Hyperparameters| h.check_shape(["", "", ""].map(String::from));
        assert!(check(&h).is_ok());
        h.extras.recurrent_layers = LayerSet::AllBut(2);
        let error = check(&h).unwrap_err().to_string();
        assert!(error.contains("layers with a window beside recurrent layers"), "{error}");
    }

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
