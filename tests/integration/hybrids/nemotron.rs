//! Published forms of the Nemotron models, whose layers have one half each.

use crate::experts::{Golden, Tensors};
use ragtag_graph::gguf::Writer;
use serde_json::json;

pub fn is_nemotron(golden: &Golden) -> bool {
    golden.name.starts_with("NemotronH")
}

/// Gives a model the names of published checkpoints. One of the models has the configuration of older files.
pub fn publish(golden: &mut Golden) {
    golden.config["time_step_limit"] = json!([0.0, "Infinity"]);
    let config = golden.config.as_object_mut().unwrap();
    if golden.name == "NemotronH" {
        config.retain(|key, _| !(key.starts_with("moe_") || key.contains("expert") || key == "n_group"));
    }
    let has_experts = golden.name == "NemotronH-Moe";
    if has_experts {
        let kinds = config.remove("layers_block_type").unwrap();
        assert_eq!(kinds, json!(["linear_attention", "moe", "full_attention"]));
        golden.config["hybrid_override_pattern"] = json!("ME*");
        golden.config["num_hidden_layers"] = json!(3);
    }
    let mut tensors = Tensors::new();
    for (key, (shape, values)) in std::mem::take(&mut golden.tensors) {
        let key = key.replace("model.", "backbone.");
        // One of the models has the experts of a layer in one tensor.
        let of_experts = key.split_once("mixer.experts.").filter(|_| has_experts);
        let Some((start, part)) = of_experts else {
            tensors.insert(key, (shape, values));
            continue;
        };
        for (expert, values) in values.chunks_exact(shape[1] * shape[2]).enumerate() {
            let key = format!("{start}mixer.experts.{expert}.{part}.weight");
            tensors.insert(key, (shape[1..].to_vec(), values.to_vec()));
        }
    }
    golden.tensors = tensors;
}

/// Writes the keys that only these models have.
pub fn put_metadata(golden: &Golden, writer: &mut Writer) {
    let architecture = architecture(golden);
    let is_moe = architecture == "nemotron_h_moe";
    let mut put = |key: &str, value: u32| writer.put(&format!("{architecture}.{key}"), value);
    if golden.config["num_hidden_layers"].is_null() {
        put("block_count", 3);
    }
    put("ssm.inner_size", 128);
    if is_moe {
        put("expert_group_used_count", 1);
        put("expert_shared_count", 1);
    }
    if golden.name == "NemotronH-Latent" {
        put("moe_latent_size", 32);
    }
    let [kv_heads, sizes] = match &*golden.name {
        "NemotronH" => [[0, 1, 0], [0, 0, 96]],
        "NemotronH-Moe" => [[0, 0, 1], [0, 32, 0]],
        _ => [[1, 0, 0], [0, 0, 32]],
    };
    writer.put(&format!("{architecture}.attention.head_count_kv"), &kv_heads[..]);
    writer.put(&format!("{architecture}.feed_forward_length"), &sizes[..]);
    // The converter computes these dimensions from the width. They have no meaning.
    writer.put(&format!("{architecture}.rope.dimension_count"), 32u32);
    writer.put(&format!("{architecture}.rope.scaling.finetuned"), false);
    if is_moe {
        writer.put(&format!("{architecture}.expert_weights_norm"), true);
        writer.put(&format!("{architecture}.expert_weights_scale"), 2.5f32);
    }
}

pub fn architecture(golden: &Golden) -> &'static str {
    if golden.name == "NemotronH" { "nemotron_h" } else { "nemotron_h_moe" }
}

/// Returns the tensors of a GGUF file that hold a tensor of the model. The file has all experts of a layer in one tensor.
pub fn gguf_tensors(
    golden: &Golden,
    key: &str,
    shape: &[usize],
    values: &[f32],
) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let Some(rest) = key.strip_prefix("backbone.layers.") else {
        let name = match key {
            "lm_head.weight" => "output.weight",
            "backbone.norm_f.weight" => "output_norm.weight",
            _ => "token_embd.weight",
        };
        return vec![(name.into(), shape.to_vec(), values.to_vec())];
    };
    let (layer, part) = rest.split_once('.').unwrap();
    let part = part.strip_prefix("mixer.").unwrap_or(if part == "norm.weight" { "" } else { part });
    let (mut sizes, mut values) = (shape.to_vec(), values.to_vec());
    if let Some(of_expert) = part.strip_prefix("experts.")
        && let Some((expert, part)) = of_expert.split_once('.')
    {
        // The first expert brings the others.
        if expert != "0" {
            return Vec::new();
        }
        let experts = (0..8).map(|expert| format!("backbone.layers.{layer}.mixer.experts.{expert}.{part}"));
        values = experts.flat_map(|key| golden.tensors[&key].1.clone()).collect();
        sizes.insert(0, 8);
    }
    let names = [
        ("shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
        ("experts.up_proj", "ffn_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("experts.0.up_proj.weight", "ffn_up_exps.weight"),
        ("experts.0.down_proj.weight", "ffn_down_exps.weight"),
        ("in_proj.weight", "ssm_in.weight"),
        ("conv1d.weight", "ssm_conv1d.weight"),
        ("conv1d.bias", "ssm_conv1d.bias"),
        ("dt_bias", "ssm_dt.bias"),
        ("A_log", "ssm_a"),
        ("D", "ssm_d"),
        ("norm.weight", "ssm_norm.weight"),
        ("out_proj.weight", "ssm_out.weight"),
        ("q_proj.weight", "attn_q.weight"),
        ("k_proj.weight", "attn_k.weight"),
        ("v_proj.weight", "attn_v.weight"),
        ("o_proj.weight", "attn_output.weight"),
        ("up_proj.weight", "ffn_up.weight"),
        ("down_proj.weight", "ffn_down.weight"),
        ("gate.weight", "ffn_gate_inp.weight"),
        ("gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("fc1_latent_proj.weight", "ffn_latent_down.weight"),
        ("fc2_latent_proj.weight", "ffn_latent_up.weight"),
        ("", "attn_norm.weight"),
    ];
    let name = names.iter().find(|(theirs, _)| *theirs == part).unwrap_or_else(|| panic!("{key}")).1;
    match name {
        "ssm_a" => (sizes, values) = (vec![4, 1], values.iter().map(|a| -a.exp()).collect()),
        "ssm_d" => sizes = vec![4, 1],
        "ssm_norm.weight" => sizes = vec![2, 64],
        "ssm_conv1d.weight" => sizes = vec![shape[0], shape[2]],
        _ => {}
    }
    vec![(format!("blk.{layer}.{name}"), sizes, values)]
}
