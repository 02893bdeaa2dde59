//! Published forms of Kimi Linear.

use crate::experts::{Golden, Tensors};
use ragtag_graph::gguf::Writer;
use serde_json::{Value, json};

/// Fields of `config.json` that published files have under other names, or not at all.
const OTHERS: [&str; 11] = [
    "layer_types",
    "mlp_layer_types",
    "linear_head_dim",
    "linear_num_heads",
    "linear_conv_kernel_dim",
    "num_local_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "n_group",
    "qk_head_dim",
    "head_dim",
];

/// Returns the configuration of published checkpoints.
pub fn published_config(config: &Value) -> Value {
    let mut config = config.clone();
    config.as_object_mut().unwrap().retain(|key, _| !OTHERS.contains(&&**key));
    config["linear_attn_config"] = json!({
        "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4
    });
    config["first_k_dense_replace"] = json!(1);
    config["mla_use_nope"] = json!(true);
    config["moe_router_activation_func"] = json!("sigmoid");
    config
}

/// Gives a model the names of published checkpoints, in which queries, keys and values have convolutions of their own.
pub fn publish(golden: &mut Golden) {
    golden.config = published_config(&golden.config);
    let mut tensors = Tensors::new();
    for (key, (shape, values)) in std::mem::take(&mut golden.tensors) {
        let key = key.replace("forget_gate.", "");
        let is_dense = key.starts_with("model.layers.0.");
        let key = if is_dense { key } else { key.replace(".mlp.", ".block_sparse_moe.") };
        let (parts, names): (usize, Vec<String>) = if key.ends_with("self_attn.conv1d.weight") {
            (3, ["q", "k", "v"].map(|part| key.replace("conv1d", &format!("{part}_conv1d"))).to_vec())
        } else if let Some((start, part)) = key.split_once("moe.experts.") {
            let names: &[&str] = if part == "down_proj" { &["w2"] } else { &["w1", "w3"] };
            let name = |at: usize| {
                format!("{start}moe.experts.{}.{}.weight", at / names.len(), names[at % names.len()])
            };
            (8 * names.len(), (0..8 * names.len()).map(name).collect())
        } else {
            (1, vec![key])
        };
        let sizes = match shape.len() {
            3 if parts > 3 => vec![shape[1] * 8 / parts, shape[2]],
            _ => [&[shape[0] / parts], &shape[1..]].concat(),
        };
        for (name, values) in names.into_iter().zip(values.chunks_exact(values.len() / parts)) {
            tensors.insert(name, (sizes.clone(), values.to_vec()));
        }
    }
    golden.tensors = tensors;
}

/// Writes the keys that only these models have.
pub fn put_metadata(writer: &mut Writer) {
    for (key, count) in [
        ("attention.kv_lora_rank", 32),
        ("attention.key_length", 48),
        ("attention.key_length_mla", 48),
        ("attention.value_length_mla", 32),
        ("rope.dimension_count", 16),
        ("context_length", 64),
        ("ssm.conv_kernel", 4),
        ("kda.head_dim", 32),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_group_count", 2),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
        ("leading_dense_block_count", 1),
    ] {
        writer.put(&format!("kimi-linear.{key}"), count as u32);
    }
    writer.put("kimi-linear.attention.head_count_kv", &[0u32, 1, 0][..]);
    writer.put("kimi-linear.expert_weights_scale", 2.0f32);
    writer.put("kimi-linear.expert_weights_norm", true);
}

/// Returns the tensors of a GGUF file that hold a tensor of the model. The file has all experts of a layer in one tensor.
pub fn gguf_tensors(
    golden: &Golden,
    key: &str,
    shape: &[usize],
    values: &[f32],
) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let Some(rest) = key.strip_prefix("model.layers.") else {
        let name = match key {
            "lm_head.weight" => "output.weight",
            "model.norm.weight" => "output_norm.weight",
            _ => "token_embd.weight",
        };
        return vec![(name.into(), shape.to_vec(), values.to_vec())];
    };
    let (layer, part) = rest.split_once('.').unwrap();
    let (mut sizes, mut values) = (shape.to_vec(), values.to_vec());
    if let Some((expert, part)) =
        part.strip_prefix("block_sparse_moe.experts.").and_then(|rest| rest.split_once('.'))
    {
        // The first expert brings the others.
        if expert != "0" {
            return Vec::new();
        }
        let experts = (0..8).map(|at| format!("model.layers.{layer}.block_sparse_moe.experts.{at}.{part}"));
        values = experts.flat_map(|key| golden.tensors[&key].1.clone()).collect();
        sizes.insert(0, 8);
    }
    let names = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("post_attention_layernorm.weight", "ffn_norm.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("self_attn.k_proj.weight", "attn_k.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"),
        ("self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"),
        ("self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"),
        ("self_attn.f_a_proj.weight", "ssm_f_a.weight"),
        ("self_attn.f_b_proj.weight", "ssm_f_b.weight"),
        ("self_attn.g_a_proj.weight", "ssm_g_a.weight"),
        ("self_attn.g_b_proj.weight", "ssm_g_b.weight"),
        ("self_attn.b_proj.weight", "ssm_beta.weight"),
        ("self_attn.A_log", "ssm_a"),
        ("self_attn.dt_bias", "ssm_dt.bias"),
        ("self_attn.o_norm.weight", "ssm_norm.weight"),
        ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
        ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
        ("self_attn.kv_b_proj.weight", "attn_kv_b.weight"),
        ("mlp.gate_proj.weight", "ffn_gate.weight"),
        ("mlp.up_proj.weight", "ffn_up.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
        ("block_sparse_moe.gate.weight", "ffn_gate_inp.weight"),
        ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("block_sparse_moe.experts.0.w1.weight", "ffn_gate_exps.weight"),
        ("block_sparse_moe.experts.0.w3.weight", "ffn_up_exps.weight"),
        ("block_sparse_moe.experts.0.w2.weight", "ffn_down_exps.weight"),
        ("block_sparse_moe.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
        ("block_sparse_moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("block_sparse_moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ];
    let name = names.iter().find(|(theirs, _)| *theirs == part).unwrap_or_else(|| panic!("{key}")).1;
    if name == "ssm_a" {
        values.iter_mut().for_each(|a| *a = -a.exp());
    }
    if name.starts_with("ssm_conv1d") {
        sizes.insert(0, 1);
    }
    vec![(format!("blk.{layer}.{name}"), sizes, values)]
}
