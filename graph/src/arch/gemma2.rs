//! Gemma 2: norms before and after each half of a layer, a scaled embedding, a GELU gate, caps of attention
//! scores and logits, and a window in every other layer. Checkpoints store the weights of norms less 1.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, TIED, USUAL, kv_heads, sliding_window};
use super::hyperparameters::Hyperparameters;
use super::keys::Keys;
use super::keys::Setting;
use super::names::{COMMON, GATED, Names};
use super::transformer::{FeedForward, Function, Layer, Norms};
use crate::error::ModelError;

pub(super) static GEMMA2: Architecture = Architecture {
    name: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    defaults: &[
        EPSILON,
        TIED,
        kv_heads(4),
        HEAD,
        SCALAR,
        sliding_window(4096),
        ("attn_logit_softcapping", Setting::Number(50.0)),
        ("final_logit_softcapping", Setting::Number(30.0)),
    ],
    biases: ATTENTION_BIAS,
    activation: GELU,
    read: |keys, h| {
        read(keys, h, 46)?;
        h.extras.score_cap = keys.float("attn_logit_softcapping", "attn_logit_softcapping")?;
        h.extras.logit_cap = keys.float("final_logit_softcapping", "final_logit_softcapping")?;
        keys.window(h, 2)
    },
    layer: |h, index| layer(h, index),
    tensors: &[COMMON, GATED, NORMS],
    ..USUAL
};

/// Names of the tanh approximation of GELU in `config.json`.
pub(super) const GELU: (&str, &[&str]) = ("hidden_activation", &["gelu_pytorch_tanh"]);

/// Default of the head size.
pub(super) const HEAD: (&str, Setting) = ("head_dim", Setting::Count(256));
/// Default of the number from whose root the factor of attention scores follows.
pub(super) const SCALAR: (&str, Setting) = ("query_pre_attn_scalar", Setting::Count(256));

/// Names of the norms of a Gemma layer.
pub(super) const NORMS: &[Names] = &[
    ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
    ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
    ("blk.N.ffn_norm.weight", "model.layers.N.pre_feedforward_layernorm.weight"),
    ("blk.N.post_ffw_norm.weight", "model.layers.N.post_feedforward_layernorm.weight"),
];

pub(super) fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    let feed_forward = FeedForward { function: Function::GeluTanh, ..plain.feed_forward };
    Layer { feed_forward, norms: Norms::Both, ..plain }
}

/// Reads what Gemma 2 and 3 share. In the model with `largest` layers, the factor of attention scores follows
/// from the width per head, unless the GGUF file contains it.
pub(super) fn read(keys: &Keys<'_>, h: &mut Hyperparameters, largest: u32) -> Result<(), ModelError> {
    h.extras.embedding_scale = (h.width as f32).sqrt();
    h.extras.norm_offset = if keys.config().is_some() { 1.0 } else { 0.0 };
    let scalar = keys.float("", "query_pre_attn_scalar")?;
    let of_width =
        (h.layers == largest && keys.config().is_none()).then_some(h.width as f32 / h.heads as f32);
    let scale = scalar.or(of_width).map(|scalar| 1.0 / scalar.sqrt());
    h.extras.score_scale = keys.float("attention.scale", "")?.or(scale);
    Ok(())
}
