//! Mistral Small 4: latent attention as in DeepSeek, whose queries grow with their position, and a softmax router. The
//! published checkpoints wrap the text model in a vision model.

use super::architecture::{Architecture, EPSILON};
use super::deepseek2;
use super::keys::Setting;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

pub(super) static MISTRAL4: Architecture = Architecture {
    name: "mistral4",
    classes: &["Mistral4ForCausalLM"],
    multimodal_classes: &["Mistral3ForConditionalGeneration"],
    defaults: &[
        EPSILON,
        ("n_routed_experts", Setting::Count(128)),
        ("n_shared_experts", Setting::Count(1)),
        ("num_experts_per_tok", Setting::Count(4)),
        ("moe_intermediate_size", Setting::Count(2048)),
        ("norm_topk_prob", Setting::Flag(true)),
    ],
    read: |keys, h| {
        if let Some(config) = keys.config() {
            // The same class wraps other text models.
            config.refuse("model_type", &[json!("mistral4")])?;
        }
        deepseek2::read(keys, h, Choice { epsilon: 1e-20, ..Choice::softmax(1, false) })
    },
    ..deepseek2::LATENT
};
