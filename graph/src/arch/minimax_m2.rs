//! MiniMax M2: experts that a sigmoid router chooses, one norm each for all queries and all keys of a row, and a part of
//! each head that rotates.

use super::architecture::{Architecture, EPSILON, USUAL, kv_heads};
use super::experts;
use super::keys::Setting;
use super::names::{COMMON, HEAD_NORMS, MIXTRAL_EXPERTS, NORMS};
use super::transformer::{Attention, Layer, QkNorm};

pub(super) static MINIMAX_M2: Architecture = Architecture {
    name: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM"],
    defaults: &[
        EPSILON,
        kv_heads(8),
        ("head_dim", Setting::Count(128)),
        ("num_local_experts", Setting::Count(256)),
        ("num_experts_per_tok", Setting::Count(8)),
    ],
    has_partial_rotation: true,
    read: |keys, h| {
        // Released files say with this field alone which part of a head rotates.
        let rotating = keys.count("", "rotary_dim")?.filter(|_| h.rope.dimensions == h.head_dimensions);
        h.rope.dimensions = rotating.unwrap_or(h.rope.dimensions);
        if let Some(config) = keys.config() {
            keys.mark("use_qk_norm");
            config.refuse("use_qk_norm", &[true.into()])?;
        }
        h.extras.experts = Some(experts::read(keys, h, experts::sigmoid())?);
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qk_norm: Some(QkNorm::Whole), ..plain.attention }, ..plain }
    },
    tensors: &[
        COMMON,
        NORMS,
        MIXTRAL_EXPERTS,
        HEAD_NORMS,
        &[("blk.N.exp_probs_b.bias", "model.layers.N.block_sparse_moe.e_score_correction_bias")],
    ],
    ..USUAL
};
