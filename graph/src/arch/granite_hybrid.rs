//! Granite 4: Granite whose layers are Mamba 2 or attention, most often without RoPE, and which may have experts beside a
//! network that all tokens use.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, USUAL};
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::granite;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{COMMON, NORMS};
use super::recurrent::{self, MAMBA, MambaFields, Recurrent};
use super::rope::RopePairing;
use super::transformer::{FeedForward, Layer};
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

pub(super) static GRANITE_HYBRID: Architecture = Architecture {
    name: "granitehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    defaults: &[
        EPSILON,
        ("attention_multiplier", Setting::Number(1.0)),
        ("num_local_experts", Setting::Count(8)),
        ("num_experts_per_tok", Setting::Count(2)),
        ("shared_intermediate_size", Setting::Count(1024)),
        ("mamba_n_heads", Setting::Count(128)),
        ("mamba_n_groups", Setting::Count(1)),
        ("mamba_d_state", Setting::Count(256)),
        ("mamba_d_conv", Setting::Count(4)),
        ("mamba_expand", Setting::Count(2)),
    ],
    biases: ATTENTION_BIAS,
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        granite::factors(keys, h)?;
        if let Some(config) = keys.config() {
            config.refuse("mamba_proj_bias", &[json!(false)])?;
            if config.text("position_embedding_type")? != Some("rope") {
                h.extras.unrotated_layers = LayerSet::All;
            }
        }
        // GGUF files have no number of KV heads for recurrent layers.
        recurrent::layers(keys, h, if keys.config().is_some() { LayerSet::All } else { LayerSet::None })?;
        h.extras.recurrent = Some(mamba(keys, h)?);
        network(keys, h)
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { feed_forward: FeedForward { is_fused: h.extras.fused_gates, ..plain.feed_forward }, ..plain }
    },
    tensors: &[
        COMMON,
        NORMS,
        MAMBA,
        &[
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.block_sparse_moe.router.layer.weight"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.block_sparse_moe.input_linear.weight"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.block_sparse_moe.output_linear.weight"),
            ("blk.N.ffn_gate_up_shexp.weight", "model.layers.N.shared_mlp.input_linear.weight"),
            ("blk.N.ffn_down_shexp.weight", "model.layers.N.shared_mlp.output_linear.weight"),
        ],
    ],
    ..USUAL
};

/// Reads the sizes of the Mamba layers.
fn mamba(keys: &Keys<'_>, h: &Hyperparameters) -> Result<Recurrent, ModelError> {
    let fields = MambaFields {
        taps: "mamba_d_conv",
        heads: "mamba_n_heads",
        groups: "mamba_n_groups",
        state: "mamba_d_state",
        bias: "mamba_conv_bias",
    };
    let inner = |_| Ok(recurrent::count(keys, "", "mamba_expand", 2)?.saturating_mul(h.width));
    recurrent::mamba(keys, &fields, inner)
}

/// Reads the network that all tokens use, and the experts beside it if there are any.
fn network(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    h.extras.fused_gates = keys.config().is_some();
    let size = keys.count("expert_shared_feed_forward_length", "shared_intermediate_size")?;
    if keys.whole("expert_count", "num_local_experts")?.unwrap_or(0) > 0 {
        let found = experts::read(keys, h, Choice::softmax(1, true))?;
        h.extras.experts = Some(Experts { shared: size, ..found });
    } else if let Some(size) = size.filter(|_| keys.config().is_some()) {
        h.feed_forward = size;
    }
    Ok(())
}
