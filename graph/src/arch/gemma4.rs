//! Gemma 4 (text): Gemma 3 with larger heads and fewer keys and values in layers without a window, a norm of values, and a
//! number for each layer. Keys may also be values. Experts may work beside the feed-forward network. Small models have
//! embeddings for each layer, and layers that read the keys and values of an earlier one.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, TIED, USUAL, kv_heads, sliding_window};
use super::experts;
use super::gemma2::{GELU, NORMS, layer as gemma2_layer};
use super::hyperparameters::{Hyperparameters, LARGEST};
use super::keys::{Keys, Setting};
use super::names::{COMMON, GATED, HEAD_NORMS, LAYER_PROJECTION, LAYER_TABLE};
use super::rope::{Rope, RopeFactors};
use super::transformer::{Attention, FeedForward, Layer, QkNorm};
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

/// RoPE bases of layers with a window and without one, in files without bases.
const BASES: [f32; 2] = [1e4, 1e6];

pub(super) static GEMMA4: Architecture = Architecture {
    name: "gemma4",
    classes: &["Gemma4ForCausalLM"],
    multimodal_classes: &["Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"],
    has_partial_rotation: true,
    defaults: &[
        EPSILON,
        TIED,
        ("num_attention_heads", Setting::Count(8)),
        kv_heads(4),
        ("head_dim", Setting::Count(256)),
        ("global_head_dim", Setting::Count(512)),
        sliding_window(512),
        ("max_position_embeddings", Setting::Count(131_072)),
        ("vocab_size", Setting::Count(262_144)),
    ],
    biases: ATTENTION_BIAS,
    activation: GELU,
    read: |keys, h| {
        check_attention(keys)?;
        h.extras.embedding_scale = (h.width as f32).sqrt();
        h.extras.score_scale = Some(1.0);
        h.extras.logit_cap = keys.float("final_logit_softcapping", "final_logit_softcapping")?;
        keys.window(h, 6)?;
        heads(keys, h)?;
        sharing(keys, h)?;
        ropes(keys, h)?;
        let has_experts = match keys.config() {
            Some(_) => keys.flag("", "enable_moe_block")?.unwrap_or(false),
            None => keys.whole("expert_count", "")?.is_some_and(|count| count > 0),
        };
        if has_experts {
            let choice = Choice { is_scaled: true, ..Choice::softmax(1, true) };
            h.extras.experts = Some(experts::read(keys, h, choice)?);
        }
        Ok(())
    },
    layer,
    tensors: &[
        COMMON,
        GATED,
        NORMS,
        HEAD_NORMS,
        &[
            ("blk.N.layer_output_scale.weight", "model.layers.N.layer_scalar"),
            (LAYER_TABLE, "model.embed_tokens_per_layer.weight"),
            (LAYER_PROJECTION, "model.per_layer_model_projection.weight"),
            ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
            ("blk.N.inp_gate.weight", "model.layers.N.per_layer_input_gate.weight"),
            ("blk.N.proj.weight", "model.layers.N.per_layer_projection.weight"),
            ("blk.N.post_norm.weight", "model.layers.N.post_per_layer_input_norm.weight"),
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.router.proj.weight"),
            ("blk.N.ffn_gate_inp.scale", "model.layers.N.router.scale"),
            ("blk.N.ffn_down_exps.scale", "model.layers.N.router.per_expert_scale"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.experts.gate_up_proj"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.experts.down_proj"),
            ("blk.N.pre_ffw_norm_2.weight", "model.layers.N.pre_feedforward_layernorm_2.weight"),
            ("blk.N.post_ffw_norm_1.weight", "model.layers.N.post_feedforward_layernorm_1.weight"),
            ("blk.N.post_ffw_norm_2.weight", "model.layers.N.post_feedforward_layernorm_2.weight"),
        ],
    ],
    ..USUAL
};

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let gemma = gemma2_layer(h, index);
    let keys_are_values = h.extras.keys_are_values && gemma.attention.scores.window.is_none();
    Layer {
        attention: Attention { qk_norm: Some(QkNorm::Values), keys_are_values, ..gemma.attention },
        feed_forward: FeedForward { is_beside_experts: true, ..gemma.feed_forward },
        has_scale: true,
        ..gemma
    }
}

/// Refuses attention to later tokens. Tokens of images may attend to each other, but those of text attend to earlier tokens.
fn check_attention(keys: &Keys<'_>) -> Result<(), ModelError> {
    let Some(config) = keys.config() else { return Ok(()) };
    config.refuse("use_bidirectional_attention", &[json!(false), json!("vision")])?;
    keys.mark("use_bidirectional_attention");
    Ok(())
}

/// Reads the size of embeddings for each layer, and which layers share keys and values.
fn sharing(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let size = keys.whole("embedding_length_per_layer_input", "hidden_size_per_layer_input")?;
    h.extras.layer_embedding = size.filter(|size| *size > 0);
    let size = h.extras.layer_embedding.map_or(0, u64::from);
    if size * u64::from(h.layers) > u64::from(LARGEST) {
        let key = keys.label("embedding_length_per_layer_input", "hidden_size_per_layer_input");
        return Err(ModelError::Hyperparameter { key, why: format!("{size} for {} layers", h.layers) });
    }
    let count = keys.whole("attention.shared_kv_layers", "num_kv_shared_layers")?.unwrap_or(0);
    if count == 0 {
        return Ok(());
    }
    h.extras.shared_kv_from = Some(h.layers.saturating_sub(count));
    if (0..h.layers).any(|layer| h.extras.kv_layer(layer).is_none()) {
        let key = keys.label("attention.shared_kv_layers", "num_kv_shared_layers");
        let why = format!("no layer has keys and values for {count} of {} layers", h.layers);
        return Err(ModelError::Hyperparameter { key, why });
    }
    if keys.flag("", "use_double_wide_mlp")?.unwrap_or(false) {
        let (first, usual) = (h.layers - count, h.feed_forward);
        let hidden = |layer| if layer < first { usual } else { 2 * usual };
        h.extras.layer_feed_forward = (0..h.layers).map(hidden).collect();
    }
    Ok(())
}

/// Reads the heads of layers with a window. The other hyperparameters describe the other layers.
fn heads(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    h.extras.windowed_head_dimensions = keys.count("attention.key_length_swa", "head_dim")?;
    let values = keys.count("attention.value_length_swa", "")?;
    if values.is_some_and(|values| Some(values) != h.extras.windowed_head_dimensions) {
        let what = format!("{} other than the key length", keys.label("attention.value_length_swa", ""));
        return Err(ModelError::Unsupported { what });
    }
    // In GGUF files, the tensors tell.
    h.extras.keys_are_values = keys.config().is_none() || keys.flag("", "attention_k_eq_v")? == Some(true);
    let full = keys.count("", "num_global_key_value_heads")?;
    if let Some(full) = full.filter(|full| h.extras.keys_are_values && *full != h.kv_heads) {
        let windowed = std::mem::replace(&mut h.kv_heads, full);
        let count = |layer| if h.extras.windowed_layers.contains(layer) { windowed } else { full };
        h.extras.layer_kv_heads = (0..h.layers).map(count).collect();
    }
    Ok(())
}

/// Completes the RoPE of both kinds of layers.
fn ropes(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let [windowed, full] = BASES;
    h.extras.keeps_rope_factors = true;
    if let Some(config) = keys.config() {
        if config.find("rope_parameters").is_none() {
            h.rope = Rope {
                base: full,
                factors: RopeFactors::Proportional { pairs: h.head_dimensions / 8 },
                ..h.rope
            };
        }
        if h.rope.dimensions != h.head_dimensions {
            let what = "a RoPE that is not proportional in layers without a window".to_owned();
            return Err(ModelError::Unsupported { what });
        }
    }
    let base = keys.float("rope.freq_base_swa", "")?.unwrap_or(windowed);
    let size = h.extras.windowed_head_dimensions.unwrap_or(h.head_dimensions);
    let dimensions = keys.count("rope.dimension_count_swa", "")?.unwrap_or(size);
    let plain = Rope { base, pairing: h.rope.pairing, ..Rope::plain() };
    h.extras.windowed_rope = Some(Rope { dimensions, ..h.extras.windowed_rope.unwrap_or(plain) });
    Ok(())
}
