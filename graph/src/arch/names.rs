//! Names of tensors in the graph and in checkpoints. The graph uses the GGUF names. `N` stands for the layer
//! number, and `M` for the number of an expert.

use std::borrow::Cow;

/// Name of a tensor in the graph, and its name in checkpoints.
pub(crate) type Names = (&'static str, &'static str);

/// Name of the token embedding.
pub(crate) const EMBEDDING: &str = "token_embd.weight";
/// Name of the projection to logits. A model without this tensor uses the embedding instead.
pub(crate) const HEAD: &str = "output.weight";
/// Name of the factors that divide the RoPE frequencies.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Names of the embedding table and of the projection that hold the parts of all layers.
pub(crate) const LAYER_TABLE: &str = "per_layer_token_embd.weight";
pub(crate) const LAYER_PROJECTION: &str = "per_layer_model_proj.weight";

/// Names of the factors that divide the RoPE frequencies, for contexts up to the original length and beyond.
pub(crate) const SHORT_FACTORS: &str = "rope_factors_short.weight";
pub(crate) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Names of the tensors that are common to the checkpoints of all architectures.
pub(super) const COMMON: &[Names] = &[
    (EMBEDDING, "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    (HEAD, "lm_head.weight"),
    ("blk.N.attn_q.weight", "model.layers.N.self_attn.q_proj.weight"),
    ("blk.N.attn_k.weight", "model.layers.N.self_attn.k_proj.weight"),
    ("blk.N.attn_v.weight", "model.layers.N.self_attn.v_proj.weight"),
    ("blk.N.attn_output.weight", "model.layers.N.self_attn.o_proj.weight"),
    ("blk.N.attn_q.bias", "model.layers.N.self_attn.q_proj.bias"),
    ("blk.N.attn_k.bias", "model.layers.N.self_attn.k_proj.bias"),
    ("blk.N.attn_v.bias", "model.layers.N.self_attn.v_proj.bias"),
    ("blk.N.attn_output.bias", "model.layers.N.self_attn.o_proj.bias"),
];

/// Names of the norms before attention and before the feed-forward network.
pub(super) const NORMS: &[Names] = &[
    ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
    ("blk.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
];

/// Names of the norms of query heads and key heads.
pub(super) const HEAD_NORMS: &[Names] = &[
    ("blk.N.attn_q_norm.weight", "model.layers.N.self_attn.q_norm.weight"),
    ("blk.N.attn_k_norm.weight", "model.layers.N.self_attn.k_norm.weight"),
];

/// Names of the projections of a gated feed-forward network.
pub(super) const GATED: &[Names] = &[
    ("blk.N.ffn_gate.weight", "model.layers.N.mlp.gate_proj.weight"),
    ("blk.N.ffn_up.weight", "model.layers.N.mlp.up_proj.weight"),
    ("blk.N.ffn_down.weight", "model.layers.N.mlp.down_proj.weight"),
    ("blk.N.ffn_gate.bias", "model.layers.N.mlp.gate_proj.bias"),
    ("blk.N.ffn_up.bias", "model.layers.N.mlp.up_proj.bias"),
    ("blk.N.ffn_down.bias", "model.layers.N.mlp.down_proj.bias"),
];

/// Names of the projections of a gated feed-forward network whose gate and up projections are one tensor.
pub(super) const FUSED_GATED: &[Names] = &[
    ("blk.N.ffn_up.weight", "model.layers.N.mlp.gate_up_proj.weight"),
    ("blk.N.ffn_down.weight", "model.layers.N.mlp.down_proj.weight"),
];

/// Names of the tensors of a mixture of experts. Checkpoints have the tensors of each expert, or those of all experts in
/// one tensor.
pub(super) const EXPERTS: &[Names] = &[
    ("blk.N.ffn_gate_inp.weight", "model.layers.N.mlp.gate.weight"),
    ("blk.N.ffn_gate.M.weight", "model.layers.N.mlp.experts.M.gate_proj.weight"),
    ("blk.N.ffn_up.M.weight", "model.layers.N.mlp.experts.M.up_proj.weight"),
    ("blk.N.ffn_down.M.weight", "model.layers.N.mlp.experts.M.down_proj.weight"),
    ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.mlp.experts.gate_up_proj"),
    ("blk.N.ffn_down_exps.weight", "model.layers.N.mlp.experts.down_proj"),
];

/// Names of the tensors of a mixture of experts in checkpoints of Mixtral and others.
pub(super) const MIXTRAL_EXPERTS: &[Names] = &[
    ("blk.N.ffn_gate_inp.weight", "model.layers.N.block_sparse_moe.gate.weight"),
    ("blk.N.ffn_gate.M.weight", "model.layers.N.block_sparse_moe.experts.M.w1.weight"),
    ("blk.N.ffn_down.M.weight", "model.layers.N.block_sparse_moe.experts.M.w2.weight"),
    ("blk.N.ffn_up.M.weight", "model.layers.N.block_sparse_moe.experts.M.w3.weight"),
];

/// Names of the network beside the experts that all tokens use.
pub(super) const SHARED_EXPERTS: &[Names] = &[
    ("blk.N.ffn_gate_shexp.weight", "model.layers.N.mlp.shared_experts.gate_proj.weight"),
    ("blk.N.ffn_up_shexp.weight", "model.layers.N.mlp.shared_experts.up_proj.weight"),
    ("blk.N.ffn_down_shexp.weight", "model.layers.N.mlp.shared_experts.down_proj.weight"),
];

/// Names of further tensors in layers that predict further tokens. These layers are not read.
pub(super) const PREDICTORS: &[Names] = &[
    ("blk.N.nextn.eh_proj.weight", "model.layers.N.eh_proj.weight"),
    ("blk.N.nextn.enorm.weight", "model.layers.N.enorm.weight"),
    ("blk.N.nextn.hnorm.weight", "model.layers.N.hnorm.weight"),
    ("blk.N.nextn.embed_tokens.weight", "model.layers.N.embed_tokens.weight"),
    ("blk.N.nextn.shared_head_norm.weight", "model.layers.N.shared_head.norm.weight"),
    ("blk.N.nextn.shared_head_head.weight", "model.layers.N.shared_head.head.weight"),
];

/// Starts of names of tensors that predict further tokens, in checkpoints that hold them apart from the layers.
const OTHER_PREDICTORS: [&str; 2] = ["mtp.", "model.mtp_"];

/// Names of RoPE frequencies. Some checkpoints contain them, although they follow from the hyperparameters.
const DERIVED: [&str; 2] = ["model.layers.N.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"];

/// Prefixes of tensors that are not in the text part of a multimodal model.
const OTHER_PARTS: [&str; 8] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "visual.",
    "vision_embedder.",
    "embed_vision.",
    "audio_tower.",
    "embed_audio.",
];
/// Prefix of tensors in the text part of a multimodal model.
const TEXT_PART: &str = "language_model.";

/// Returns the name that a checkpoint of the text part alone has for a tensor of a multimodal checkpoint.
/// Returns `None` if the tensor belongs to another part. Version 5 of `transformers` writes `model.` before the
/// name of the part, and older versions write it after the name.
pub(super) fn in_text_part(name: &str) -> Option<Cow<'_, str>> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if OTHER_PARTS.iter().any(|part| inner.starts_with(part)) {
        return None;
    }
    let Some(rest) = inner.strip_prefix(TEXT_PART) else { return Some(name.into()) };
    Some(if inner == name { rest.into() } else { format!("model.{rest}").into() })
}

/// Returns whether the hyperparameters determine the tensor that checkpoints call `name`.
pub(crate) fn is_derived(name: &str) -> bool {
    DERIVED.iter().any(|derived| renamed(name, derived, derived).is_some())
}

/// Returns whether the tensor that checkpoints call `name` predicts further tokens, and is apart from the layers.
pub(crate) fn is_predictor(name: &str) -> bool {
    OTHER_PREDICTORS.iter().any(|start| name.starts_with(start))
}

/// Returns the number of the layer of the tensor `name` of a graph, if it is in a layer.
pub(crate) fn layer_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// If `name` matches the pattern `from`, returns `to` with the same numbers of the layer and of the expert. Accepts only
/// canonical numbers, so that two names cannot denote the same tensor.
fn renamed(name: &str, from: &str, to: &str) -> Option<String> {
    let (mut name, mut from, mut to) = (name, from, to.to_owned());
    for mark in ['N', 'M'] {
        let Some((before, after)) = from.split_once(mark) else { continue };
        let rest = name.strip_prefix(before)?;
        let (number, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        number.parse::<u32>().ok().filter(|parsed| parsed.to_string() == number)?;
        to = to.replacen(mark, number, 1);
        (name, from) = (rest, after);
    }
    (name == from).then_some(to)
}

/// Returns the graph's name for a tensor of a checkpoint, if one of the tables contains the tensor.
pub(crate) fn in_graph(tables: &[&[Names]], name: &str) -> Option<String> {
    tables.iter().copied().flatten().find_map(|(ours, theirs)| renamed(name, theirs, ours))
}

/// Returns the checkpoint's name for a tensor of the graph, or `name` itself if no table contains the tensor.
pub(crate) fn in_checkpoint(tables: &[&[Names]], name: &str) -> String {
    let found = tables.iter().copied().flatten().find_map(|(ours, theirs)| renamed(name, ours, theirs));
    found.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ARCHITECTURES;

    #[test]
    fn names_map_in_both_directions() {
        for architecture in ARCHITECTURES {
            for (ours, theirs) in architecture.tensors.iter().copied().flatten() {
                let [ours, theirs] =
                    [ours, theirs].map(|name| name.replacen('N', "17", 1).replacen('M', "3", 1));
                assert_eq!(in_graph(architecture.tensors, &theirs).as_ref(), Some(&ours));
                assert_eq!(in_checkpoint(architecture.tensors, &ours), theirs);
            }
        }
        for other in [
            "",
            "blk.0.attn_q.weight",
            "token_embd.weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.layers.N.self_attn.q_proj.weight",
            "model.layers.0.mlp.gate_proj.bias",
            "model.layers.00.self_attn.q_proj.weight",
            "model.layers.+1.self_attn.q_proj.weight",
            "model.layers.99999999999.self_attn.q_proj.weight",
            "model.layers..self_attn.q_proj.weight",
        ] {
            assert_eq!(in_graph(&[COMMON], other), None, "{other}");
        }
        for other in ["0.experts.-1", "0.experts.01", "0.experts.", "0.experts.M", "0.experts.1.2"] {
            let name = format!("model.layers.{}.up_proj.weight", other.replacen("0.", "0.mlp.", 1));
            assert_eq!(in_graph(&[EXPERTS], &name), None, "{name}");
        }
        assert_eq!(in_checkpoint(&[COMMON], "rope_freqs.weight"), "rope_freqs.weight");
        for (name, text) in [
            ("model.norm.weight", Some("model.norm.weight")),
            ("language_model.model.norm.weight", Some("model.norm.weight")),
            ("language_model.lm_head.weight", Some("lm_head.weight")),
            ("model.language_model.norm.weight", Some("model.norm.weight")),
            ("vision_tower.norm.weight", None),
            ("vision_model.norm.weight", None),
            ("visual.norm.weight", None),
            ("model.embed_audio.norm.weight", None),
            ("model.visual.norm.weight", None),
            ("model.multi_modal_projector.norm.weight", None),
        ] {
            assert_eq!(in_text_part(name).as_deref(), text, "{name}");
        }
        assert!(is_derived("model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(is_derived("model.rotary_emb.inv_freq"));
        assert!(!is_derived("model.layers.x.self_attn.rotary_emb.inv_freq"));
        assert!(
            is_predictor("mtp.layers.0.fc.weight") && is_predictor("model.mtp_block.0.mlp.up_proj.weight")
        );
        assert!(!is_predictor("model.layers.0.mlp.up_proj.weight"));
    }
}
