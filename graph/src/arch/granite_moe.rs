//! Granite MoE: Granite with experts. GGUF files may also have a network that all tokens use.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, USUAL};
use super::experts::{self, Experts};
use super::granite;
use super::keys::Setting;
use super::names::{COMMON, NORMS};
use super::rope::RopePairing;
use ragtag_kernels::experts::route::Choice;

pub(super) static GRANITE_MOE: Architecture = Architecture {
    name: "granitemoe",
    classes: &["GraniteMoeForCausalLM"],
    defaults: &[
        EPSILON,
        ("attention_multiplier", Setting::Number(1.0)),
        ("num_local_experts", Setting::Count(8)),
        ("num_experts_per_tok", Setting::Count(2)),
    ],
    biases: ATTENTION_BIAS,
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        granite::factors(keys, h)?;
        let found = experts::read(keys, h, Choice::softmax(1, true))?;
        h.extras.experts = Some(Experts { shared: experts::shared(keys, &found, "")?, ..found });
        Ok(())
    },
    tensors: &[
        COMMON,
        NORMS,
        &[
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.block_sparse_moe.router.layer.weight"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.block_sparse_moe.input_linear.weight"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.block_sparse_moe.output_linear.weight"),
        ],
    ],
    ..USUAL
};
