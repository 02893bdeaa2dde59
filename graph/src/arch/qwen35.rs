//! Qwen 3.5 to 3.8, and Qwen3-Next: three of four layers are gated delta nets, and the others have attention
//! with gates. A quarter of each head rotates. The weights of norms are stored less 1, except those behind the delta nets.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, ExpertOrder, USUAL, kv_heads};
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{COMMON, EXPERTS, GATED, HEAD_NORMS, Names, PREDICTORS};
use super::recurrent::{self, DELTA_NET};
use super::transformer::{Attention, Layer};
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;

const NORMS: &[Names] = &[
    ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
    ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
];

/// Names of the network beside the experts.
const SHARED: &[Names] = &[
    ("blk.N.ffn_gate_inp_shexp.weight", "model.layers.N.mlp.shared_expert_gate.weight"),
    ("blk.N.ffn_gate_shexp.weight", "model.layers.N.mlp.shared_expert.gate_proj.weight"),
    ("blk.N.ffn_up_shexp.weight", "model.layers.N.mlp.shared_expert.up_proj.weight"),
    ("blk.N.ffn_down_shexp.weight", "model.layers.N.mlp.shared_expert.down_proj.weight"),
];

/// Returns the defaults of a class. A model without experts does not read their numbers.
const fn defaults(kv: u32, experts: u32, used: u32, hidden: u32) -> [(&'static str, Setting); 10] {
    [
        EPSILON,
        ("num_attention_heads", Setting::Count(16)),
        kv_heads(kv),
        ("head_dim", Setting::Count(256)),
        ("partial_rotary_factor", Setting::Number(0.25)),
        ("num_experts", Setting::Count(experts)),
        ("num_experts_per_tok", Setting::Count(used)),
        ("moe_intermediate_size", Setting::Count(512)),
        ("shared_expert_intermediate_size", Setting::Count(512)),
        ("intermediate_size", Setting::Count(hidden)),
    ]
}

pub(super) static QWEN35: Architecture = Architecture {
    name: "qwen35",
    classes: &["Qwen3_5ForCausalLM"],
    multimodal_classes: &["Qwen3_5ForConditionalGeneration"],
    defaults: &defaults(4, 1, 1, 12_288),
    biases: ATTENTION_BIAS,
    has_partial_rotation: true,
    read,
    layer,
    tensors: &[COMMON, NORMS, GATED, HEAD_NORMS, PREDICTORS, DELTA_NET],
    ..USUAL
};

pub(super) static QWEN35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    classes: &["Qwen3_5MoeForCausalLM"],
    multimodal_classes: &["Qwen3_5MoeForConditionalGeneration"],
    expert_order: ExpertOrder::Rows,
    // Only the experts have a size.
    defaults: &defaults(2, 256, 8, 512),
    biases: ATTENTION_BIAS,
    has_partial_rotation: true,
    read: |keys, h| {
        read(keys, h)?;
        let found = experts::read(keys, h, Choice::softmax(1, true))?;
        let shared = keys.count("expert_shared_feed_forward_length", "shared_expert_intermediate_size")?;
        let shared = Some(shared.unwrap_or(found.feed_forward));
        h.extras.experts = Some(Experts { shared, shared_gate: true, ..found });
        Ok(())
    },
    layer,
    tensors: &[COMMON, NORMS, EXPERTS, HEAD_NORMS, PREDICTORS, DELTA_NET, SHARED],
    ..USUAL
};

/// The projections of Qwen3-Next are grouped by key head. Older GGUF files have the name `ssm_in`, too.
pub(super) static QWEN3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    multimodal_classes: &[],
    defaults: &defaults(2, 512, 10, 5632),
    read: |keys, h| {
        experts::check_all_layers(keys)?;
        (QWEN35_MOE.read)(keys, h)?;
        h.extras.recurrent = Some(recurrent::delta_net(keys, false)?);
        Ok(())
    },
    tensors: &[
        COMMON,
        NORMS,
        EXPERTS,
        HEAD_NORMS,
        PREDICTORS,
        DELTA_NET,
        SHARED,
        &[
            ("blk.N.ssm_in.weight", "model.layers.N.linear_attn.in_proj_qkvz.weight"),
            ("blk.N.ssm_ba.weight", "model.layers.N.linear_attn.in_proj_ba.weight"),
        ],
    ],
    ..QWEN35_MOE
};

fn read(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    experts::skip_predictors(keys, h)?;
    let period = keys.count("full_attention_interval", "full_attention_interval")?.unwrap_or(4);
    recurrent::layers(keys, h, LayerSet::AllBut(period))?;
    h.extras.recurrent = Some(recurrent::delta_net(keys, true)?);
    // The first layer has one tensor for queries, keys and values, but it is a delta net.
    h.extras.fused_qkv = false;
    if keys.config().is_some() {
        h.extras.norm_offset = 1.0;
    }
    Ok(())
}

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    Layer {
        attention: Attention { has_gates: true, ..plain.attention },
        ffn_norm: "post_attention_norm",
        ..plain
    }
}
