//! GLM-4.5 to 4.7: experts that a sigmoid router chooses, beside a network that all tokens use. The first layers have no
//! experts. Half of each head rotates. Files may end with layers that predict further tokens, which are not read.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, kv_heads};
use super::experts::{self, Experts};
use super::keys::Setting;
use super::names::{COMMON, EXPERTS, GATED, HEAD_NORMS, PREDICTORS, SHARED_EXPERTS};
use super::transformer::{Attention, Layer, QkNorm};
use ragtag_kernels::experts::route::Choice;

pub(super) static GLM4_MOE: Architecture = Architecture {
    name: "glm4moe",
    classes: &["Glm4MoeForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(8),
        ("partial_rotary_factor", Setting::Number(0.5)),
        ("n_routed_experts", Setting::Count(128)),
        ("num_experts_per_tok", Setting::Count(8)),
        ("moe_intermediate_size", Setting::Count(1408)),
        ("n_shared_experts", Setting::Count(1)),
        ("first_k_dense_replace", Setting::Count(1)),
    ],
    biases: ATTENTION_BIAS,
    has_partial_rotation: true,
    read: |keys, h| {
        if let Some(has_norm) = keys.flag("", "use_qk_norm")? {
            h.extras.qk_norm = has_norm;
        }
        experts::skip_predictors(keys, h)?;
        let found = experts::read(keys, h, Choice { epsilon: 1e-20, ..experts::sigmoid() })?;
        let shared = experts::shared(keys, &found, "n_shared_experts")?;
        h.extras.experts = Some(Experts { shared, ..found });
        experts::dense_first(keys, h, "first_k_dense_replace")
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let qk_norm = h.extras.qk_norm.then_some(QkNorm::Heads);
        let attention = Attention { output_bias: false, qk_norm, ..plain.attention };
        Layer { attention, ffn_norm: "post_attention_norm", ..plain }
    },
    tensors: &[
        COMMON,
        GATED,
        EXPERTS,
        SHARED_EXPERTS,
        HEAD_NORMS,
        PREDICTORS,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
            ("blk.N.exp_probs_b.bias", "model.layers.N.mlp.gate.e_score_correction_bias"),
        ],
    ],
    ..USUAL
};
