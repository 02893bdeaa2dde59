//! Maps tensor names between checkpoints and the graph.

use crate::model::ModelError;

/// Name of the projection to logits.
pub(super) const HEAD: &str = "output.weight";

/// Tensors outside the blocks: the name in the checkpoint and the name in the graph.
const OUTER: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", HEAD),
];

/// Tensors within a block: the name after `model.layers.N.` in the checkpoint and after `blk.N.` in the
/// graph.
const INNER: [(&str, &str); 9] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];

/// Returns the names of the tensors within a block, as the graph uses them.
pub(super) fn inner() -> impl Iterator<Item = &'static str> {
    INNER.iter().map(|(_, ours)| *ours)
}

/// Name of the RoPE frequencies. Old checkpoints store them, although the hyperparameters determine them.
const DERIVED: &str = "self_attn.rotary_emb.inv_freq";

/// Role of a checkpoint's tensor in the graph.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A tensor of the graph with this name.
    Tensor(String),
    /// A tensor that is ignored because the hyperparameters determine its values.
    Derived,
    /// A tensor that Ragtag does not know.
    Unknown,
}

/// Returns the graph's name for a tensor of a checkpoint.
pub(super) fn in_graph(name: &str) -> Name {
    let outer = OUTER.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| (*ours).to_owned());
    if let Some(ours) = outer {
        return Name::Tensor(ours);
    }
    let block = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, part)) = block.filter(|(layer, _)| is_number(layer)) else { return Name::Unknown };
    match INNER.iter().find(|(theirs, _)| *theirs == part) {
        Some((_, ours)) => Name::Tensor(format!("blk.{layer}.{ours}")),
        None if part == DERIVED => Name::Derived,
        None => Name::Unknown,
    }
}

/// Returns the checkpoint's name for a tensor of the graph.
pub(super) fn original(name: &str) -> String {
    if let Some((theirs, _)) = OUTER.iter().find(|(_, ours)| *ours == name) {
        return (*theirs).to_owned();
    }
    let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let part = block.and_then(|(_, part)| INNER.iter().find(|(_, ours)| *ours == part));
    match (block, part) {
        (Some((layer, _)), Some((theirs, _))) => format!("model.layers.{layer}.{theirs}"),
        _ => name.to_owned(),
    }
}

/// Returns whether a text is a canonical decimal number. With leading zeros, two names could denote the same
/// tensor.
fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

/// Replaces the graph's tensor names in an error with the names in the user's file.
pub(crate) fn with_original_names(error: ModelError) -> ModelError {
    match error {
        ModelError::MissingTensor { name } => ModelError::MissingTensor { name: original(&name) },
        ModelError::UnknownTensor { name } => ModelError::UnknownTensor { name: original(&name) },
        ModelError::Shape { name, expected, found } => {
            ModelError::Shape { name: original(&name), expected, found }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_in_both_directions() {
        let theirs = OUTER.iter().map(|(theirs, _)| (*theirs).to_owned());
        let inner = INNER.iter().map(|(theirs, _)| format!("model.layers.17.{theirs}"));
        for name in theirs.chain(inner) {
            let Name::Tensor(ours) = in_graph(&name) else { panic!("{name}") };
            assert_eq!(original(&ours), name);
        }
        assert_eq!(in_graph("model.layers.0.self_attn.rotary_emb.inv_freq"), Name::Derived);
        for other in [
            "",
            "blk.0.attn_q.weight",
            "token_embd.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.00.self_attn.q_proj.weight",
            "model.layers.+1.self_attn.q_proj.weight",
            "model.layers.99999999999.self_attn.q_proj.weight",
            "model.layers..self_attn.q_proj.weight",
        ] {
            assert_eq!(in_graph(other), Name::Unknown, "{other}");
        }
        assert_eq!(original("rope_freqs.weight"), "rope_freqs.weight");
    }
}
