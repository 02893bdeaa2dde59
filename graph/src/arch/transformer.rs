//! Builds the graph of a decoder-only transformer. Each architecture describes its layers as [`Layer`]s.

use super::names::{EMBEDDING, HEAD, ROPE_FACTORS};
use super::{Architecture, Hyperparameters, Rope};
use crate::builder::Builder;
use crate::model::ModelError;
use crate::op::Heads;
use petgraph::stable_graph::NodeIndex;

/// Structure of a transformer block, including the options in which architectures differ.
pub(super) struct Layer {
    pub(super) attention: Attention,
    pub(super) feed_forward: FeedForward,
    /// Constant that the layer's RMS norms add to the mean square.
    pub(super) epsilon: f32,
}

/// Causal attention with RoPE.
pub(super) struct Attention {
    pub(super) heads: Heads,
    pub(super) rope: Rope,
    /// Whether queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether each query head and each key head is normalised before RoPE.
    pub(super) head_norm: bool,
    /// Whether a norm precedes the output projection.
    pub(super) sub_norm: bool,
}

/// Feed-forward network with a SiLU gate.
pub(super) struct FeedForward {
    /// Intermediate size, between the up and down projections.
    pub(super) hidden: u32,
    /// Whether a norm precedes the down projection.
    pub(super) sub_norm: bool,
}

impl Layer {
    /// Returns the layer that the hyperparameters describe, without optional parts.
    pub(super) fn plain(h: &Hyperparameters) -> Self {
        let heads = Heads { queries: h.heads, kv: h.kv_heads, dimensions: h.head_dimensions };
        Self {
            attention: Attention { heads, rope: h.rope, qkv_bias: false, head_norm: false, sub_norm: false },
            feed_forward: FeedForward { hidden: h.feed_forward, sub_norm: false },
            epsilon: h.epsilon,
        }
    }
}

/// Builds the graph of a model. If `has_head` is false, the embedding also serves as the projection to
/// logits.
pub(super) fn build(
    architecture: &Architecture,
    h: &Hyperparameters,
    has_head: bool,
    b: &mut Builder<'_>,
) -> Result<(), ModelError> {
    let mut x = b.embed(EMBEDDING, h.width, h.vocabulary)?;
    if h.rope.has_factors {
        b.tensor(ROPE_FACTORS, h.rope.dimensions / 2, 0)?;
    }
    for index in 0..h.layers {
        let layer = (architecture.layer)(h, index);
        b.next_segment();
        x = attention_half(&layer, h.width, b, x, index)?;
        b.next_segment();
        x = feed_forward_half(&layer, h.width, b, x, index)?;
    }
    b.next_segment();
    let x = b.gather(x);
    let x = b.rms_norm(x, "output_norm.weight", h.epsilon)?;
    b.matmul(x, if has_head { HEAD } else { EMBEDDING }, h.vocabulary)?;
    Ok(())
}

fn attention_half(
    layer: &Layer,
    width: u32,
    b: &mut Builder<'_>,
    x: NodeIndex,
    index: u32,
) -> Result<NodeIndex, ModelError> {
    let Attention { heads, rope, qkv_bias, head_norm, sub_norm } = layer.attention;
    let name = |part: &str| format!("blk.{index}.{part}.weight");
    let normed = b.rms_norm(x, &name("attn_norm"), layer.epsilon)?;
    let (q, kv) = (heads.query_width(), heads.kv_width());
    let weights = [(&*name("attn_q"), q), (&*name("attn_k"), kv), (&*name("attn_v"), kv)];
    let biases = ["attn_q", "attn_k", "attn_v"].map(|part| format!("blk.{index}.{part}.bias"));
    let mut qkv = b.joint_matmul(normed, &weights, if qkv_bias { &biases } else { &[] })?;
    if head_norm {
        qkv = b.head_norm(qkv, heads, ["attn_q_norm", "attn_k_norm"].map(name), layer.epsilon)?;
    }
    let mut attended = b.attention(qkv, index, heads, rope);
    if sub_norm {
        attended = b.rms_norm(attended, &name("attn_sub_norm"), layer.epsilon)?;
    }
    let y = b.matmul(attended, &name("attn_output"), width)?;
    Ok(b.add_residual(x, y))
}

fn feed_forward_half(
    layer: &Layer,
    width: u32,
    b: &mut Builder<'_>,
    x: NodeIndex,
    index: u32,
) -> Result<NodeIndex, ModelError> {
    let FeedForward { hidden, sub_norm } = layer.feed_forward;
    let name = |part: &str| format!("blk.{index}.{part}.weight");
    let normed = b.rms_norm(x, &name("ffn_norm"), layer.epsilon)?;
    let gate_up = b.joint_matmul(normed, &[(&*name("ffn_gate"), hidden), (&*name("ffn_up"), hidden)], &[])?;
    let mut gated = b.silu_mul(gate_up);
    if sub_norm {
        gated = b.rms_norm(gated, &name("ffn_sub_norm"), layer.epsilon)?;
    }
    let y = b.matmul(gated, &name("ffn_down"), width)?;
    Ok(b.add_residual(x, y))
}
