//! Graph construction that all decoder-only transformers share. Each architecture passes its own [`Options`].

use super::Hyperparameters;
use crate::builder::Builder;
use crate::model::ModelError;
use petgraph::stable_graph::NodeIndex;

/// Differences between architectures.
pub(super) struct Options {
    /// Whether norms precede the attention's output projection and the FFN's down projection.
    pub(super) sub_norms: bool,
}

pub(super) fn build(h: &Hyperparameters, b: &mut Builder<'_>, options: &Options) -> Result<(), ModelError> {
    let mut x = b.embed("token_embd.weight", h.width, h.vocabulary)?;
    if h.has_rope_factors {
        b.tensor("rope_freqs.weight", h.rope_dimensions / 2, 0)?;
    }
    for layer in 0..h.layers {
        b.next_segment();
        x = attention_half(h, b, options, x, layer)?;
        b.next_segment();
        x = feed_forward_half(h, b, options, x, layer)?;
    }
    b.next_segment();
    let x = b.gather(x);
    let x = b.rms_norm(x, "output_norm.weight", h.epsilon)?;
    let head = if b.has("output.weight") { "output.weight" } else { "token_embd.weight" };
    b.matmul(x, head, h.vocabulary)?;
    Ok(())
}

fn attention_half(
    h: &Hyperparameters,
    b: &mut Builder<'_>,
    options: &Options,
    x: NodeIndex,
    layer: u32,
) -> Result<NodeIndex, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let normed = b.rms_norm(x, &name("attn_norm"), h.epsilon)?;
    let (q, kv) = (h.heads * h.head_dimensions, h.kv_heads * h.head_dimensions);
    let weights = [(&*name("attn_q"), q), (&*name("attn_k"), kv), (&*name("attn_v"), kv)];
    let qkv = b.joint_matmul(normed, &weights)?;
    let mut attended = b.attention(qkv, h.rope_pairing, layer, q);
    if options.sub_norms {
        attended = b.rms_norm(attended, &name("attn_sub_norm"), h.epsilon)?;
    }
    let y = b.matmul(attended, &name("attn_output"), h.width)?;
    Ok(b.add_residual(x, y))
}

fn feed_forward_half(
    h: &Hyperparameters,
    b: &mut Builder<'_>,
    options: &Options,
    x: NodeIndex,
    layer: u32,
) -> Result<NodeIndex, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let normed = b.rms_norm(x, &name("ffn_norm"), h.epsilon)?;
    let weights = [(&*name("ffn_gate"), h.feed_forward), (&*name("ffn_up"), h.feed_forward)];
    let gate_up = b.joint_matmul(normed, &weights)?;
    let mut hidden = b.silu_mul(gate_up);
    if options.sub_norms {
        hidden = b.rms_norm(hidden, &name("ffn_sub_norm"), h.epsilon)?;
    }
    let y = b.matmul(hidden, &name("ffn_down"), h.width)?;
    Ok(b.add_residual(x, y))
}
