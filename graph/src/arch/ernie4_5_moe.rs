//! ERNIE 4.5 with experts: the router's biases decide the choice, and a network that all tokens use adds to the experts.
//! Some layers have no experts.

use super::architecture::{Architecture, TIED, USUAL, kv_heads};
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::keys::{Keys, Setting};
use super::names::{COMMON, EXPERTS, GATED, NORMS, SHARED_EXPERTS};
use super::rope::RopePairing;
use crate::arch::Hyperparameters;
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;

pub(super) static ERNIE4_5_MOE: Architecture = Architecture {
    name: "ernie4_5-moe",
    classes: &["Ernie4_5_MoeForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(4),
        TIED,
        ("moe_num_experts", Setting::Count(64)),
        ("moe_k", Setting::Count(6)),
        ("moe_intermediate_size", Setting::Count(1536)),
        ("moe_num_shared_experts", Setting::Count(2)),
        ("moe_layer_start_index", Setting::Count(1)),
    ],
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        // The sum over the chosen experts is at least 1e-12, which is below the rounding of any real sum.
        let usual = Choice { is_biased: true, epsilon: 1e-12, ..Choice::softmax(1, true) };
        let found = experts::read(keys, h, usual)?;
        let shared = experts::shared(keys, &found, "moe_num_shared_experts")?;
        h.extras.experts = Some(Experts { shared, ..found });
        layers(keys, h)
    },
    tensors: &[
        COMMON,
        NORMS,
        GATED,
        EXPERTS,
        SHARED_EXPERTS,
        &[("blk.N.exp_probs_b.bias", "model.layers.N.mlp.moe_statics.e_score_correction_bias")],
    ],
    ..USUAL
};

/// Reads which layers have experts: every n-th one between two layers.
fn layers(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let first = keys.whole("leading_dense_block_count", "moe_layer_start_index")?.unwrap_or(0);
    let step = keys.count("interleave_moe_layer_step", "moe_layer_interval")?.unwrap_or(1);
    let last = match keys.config().and_then(|config| config.find("moe_layer_end_index")) {
        Some(value) if value.as_i64() == Some(-1) => h.layers - 1,
        Some(_) => keys.whole("", "moe_layer_end_index")?.unwrap_or(h.layers - 1),
        None => h.layers - 1,
    };
    h.extras.expert_layers = if step == 1 && last >= h.layers - 1 {
        LayerSet::From(first)
    } else {
        let has_experts = |layer: u32| (layer + 1).is_multiple_of(step) && (first..=last).contains(&layer);
        LayerSet::Listed((0..h.layers).map(has_experts).collect())
    };
    Ok(())
}
