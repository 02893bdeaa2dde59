//! Hyperparameters of a mixture of experts: a router chooses a few feed-forward networks for each token.

use super::extras::LayerSet;
use super::hyperparameters::{Hyperparameters, LARGEST};
use super::keys::Keys;
use crate::error::ModelError;
use ragtag_kernels::experts::gate::Rule;
use ragtag_kernels::experts::route::{Choice, Gate, Groups, MAX_EXPERTS, MAX_USED};
use serde::Serialize;
use serde_json::json;

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Experts {
    /// Number of experts.
    pub count: u32,
    /// Number of experts that the router chooses for each token.
    pub used: u32,
    /// Intermediate size of each expert.
    pub feed_forward: u32,
    /// Intermediate size of the network that all tokens use, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<u32>,
    /// Number of values of the rows that the experts read and write, if it is not that of the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<u32>,
    /// Whether the experts and the shared network lack gates. The function is then that of the up projection.
    #[serde(skip)]
    pub lacks_gates: bool,
    /// Whether the output of this network has a gate.
    #[serde(skip)]
    pub shared_gate: bool,
    /// Rule by which the router chooses.
    #[serde(skip)]
    pub choice: Choice,
    /// Rule of a weight by which the input of a token's only expert is multiplied, if there is one.
    #[serde(skip)]
    pub input_choice: Option<Choice>,
    /// Gated function of the experts, if it is not the usual one. It adds biases.
    #[serde(skip)]
    pub rule: Option<Rule>,
    /// Whether the router and the down projections have biases.
    #[serde(skip)]
    pub has_biases: bool,
}

/// Names that fields of `config.json` have in some classes.
const COUNTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
const USED: [&str; 3] = ["num_experts_per_tok", "moe_k", "top_k_experts"];

/// Returns the first count that the file has. The first field of `config` is the one of messages.
fn first_count(keys: &Keys<'_>, gguf: &str, config: &[&str]) -> Result<Option<u32>, ModelError> {
    for (at, field) in config.iter().enumerate() {
        if let Some(count) = keys.count(if at == 0 { gguf } else { "" }, field)? {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

fn bad(keys: &Keys<'_>, gguf: &str, config: &str, why: String) -> ModelError {
    ModelError::Hyperparameter { key: keys.label(gguf, config), why }
}

/// Reads the mixture, without a shared network. `usual` is the rule of the architecture, which keys of the file change.
pub(super) fn read(keys: &Keys<'_>, h: &Hyperparameters, usual: Choice) -> Result<Experts, ModelError> {
    let missing = |gguf: &str, config: &str| bad(keys, gguf, config, "is missing".into());
    let count = first_count(keys, "expert_count", &COUNTS)?;
    let count = count.ok_or_else(|| missing("expert_count", COUNTS[0]))?;
    if count > MAX_EXPERTS {
        let why = format!("{count} experts (the limit is {MAX_EXPERTS})");
        return Err(bad(keys, "expert_count", COUNTS[0], why));
    }
    let used = first_count(keys, "expert_used_count", &USED)?;
    let used = used.ok_or_else(|| missing("expert_used_count", USED[0]))?;
    if used > count.min(MAX_USED) {
        let why = format!("{used} of {count} experts for each token (the limit is {MAX_USED})");
        return Err(bad(keys, "expert_used_count", USED[0], why));
    }
    let feed_forward = keys.count("expert_feed_forward_length", "moe_intermediate_size")?;
    let feed_forward = feed_forward.unwrap_or(h.feed_forward);
    // All rows of a projection are counted in 32 bits.
    let rows = u64::from(count) * u64::from(h.width.max(2 * feed_forward));
    if rows > u64::from(LARGEST) << 4 {
        let why = format!("{count} experts have {rows} rows");
        return Err(bad(keys, "expert_count", COUNTS[0], why));
    }
    let choice = choice(keys, Choice { used, ..usual })?;
    if !choice.is_possible(count) {
        let Groups { count: groups, kept, .. } = choice.groups;
        let why = format!("{used} of {count} experts, from {kept} of {groups} groups");
        return Err(bad(keys, "expert_group_used_count", "topk_group", why));
    }
    Ok(Experts {
        count,
        used,
        feed_forward,
        shared: None,
        latent: None,
        lacks_gates: false,
        shared_gate: false,
        choice,
        input_choice: None,
        rule: None,
        has_biases: false,
    })
}

/// Returns the rule of the choice, as far as the file describes it.
fn choice(keys: &Keys<'_>, usual: Choice) -> Result<Choice, ModelError> {
    // 3 stands for a softmax over the chosen experts.
    let (gate, is_normalised) = match keys.whole("expert_gating_func", "")? {
        None | Some(0) => (usual.gate, usual.is_normalised),
        Some(1) => (Gate::Softmax, usual.is_normalised),
        Some(2) => (Gate::Sigmoid, usual.is_normalised),
        Some(3) => (Gate::Softmax, true),
        Some(other) => {
            let what = format!("{} = {other}", keys.label("expert_gating_func", ""));
            return Err(ModelError::Unsupported { what });
        }
    };
    let is_normalised = keys.flag("expert_weights_norm", "norm_topk_prob")?.unwrap_or(is_normalised);
    let scale = keys.float("expert_weights_scale", "routed_scaling_factor")?.unwrap_or(usual.scale);
    let count = keys.count("expert_group_count", "n_group")?.unwrap_or(1);
    let kept = keys.count("expert_group_used_count", "topk_group")?.unwrap_or(count);
    // All groups together exclude no expert.
    let groups = if kept == count {
        Groups { count: 1, kept: 1, best: 1 }
    } else {
        Groups { count, kept, ..usual.groups }
    };
    Ok(Choice { gate, is_normalised, scale, groups, ..usual })
}

/// Reads the size of the network that all tokens use, if there is one: that of `n` experts, unless the file has a size of its
/// own. `field` counts these experts in `config.json`.
pub(super) fn shared(keys: &Keys<'_>, experts: &Experts, field: &str) -> Result<Option<u32>, ModelError> {
    let size = keys.count("expert_shared_feed_forward_length", "")?;
    let count = keys.whole("expert_shared_count", field)?.filter(|count| *count > 0);
    let Some(count) = count else { return Ok(size) };
    let of_experts = count.checked_mul(experts.feed_forward).filter(|size| *size <= LARGEST);
    let why = || format!("{count} shared experts of {}", experts.feed_forward);
    let of_experts = of_experts.ok_or_else(|| bad(keys, "expert_shared_count", field, why()))?;
    Ok(size.or(Some(of_experts)))
}

/// Returns the rule of routers with a sigmoid: biases decide the choice, and the weights have the sum 1.
pub(super) fn sigmoid() -> Choice {
    let groups = Groups { count: 1, kept: 1, best: 2 };
    Choice { gate: Gate::Sigmoid, is_biased: true, groups, ..Choice::softmax(1, true) }
}

/// Notes the layers after the last one that predict further tokens. A GGUF file counts them with the others.
pub(super) fn skip_predictors(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let count = keys.whole("nextn_predict_layers", "num_nextn_predict_layers")?.unwrap_or(0);
    if keys.config().is_none() {
        let why = || format!("{count} of {} layers", h.layers);
        let layers = h.layers.checked_sub(count).filter(|layers| *layers > 0);
        h.layers = layers.ok_or_else(|| bad(keys, "nextn_predict_layers", "", why()))?;
    }
    h.extras.has_predictors = count > 0;
    Ok(())
}

/// Reads the number of first layers without experts.
pub(super) fn dense_first(keys: &Keys<'_>, h: &mut Hyperparameters, field: &str) -> Result<(), ModelError> {
    let first = keys.whole("leading_dense_block_count", field)?.unwrap_or(0);
    if first > 0 {
        h.extras.expert_layers = LayerSet::From(first);
    }
    Ok(())
}

/// Reads which layers have experts, if the file lists their kinds.
pub(super) fn sparse_layers(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    const FIELD: &str = "mlp_layer_types";
    let Some(config) = keys.config() else { return Ok(()) };
    let Some(types) = config.texts(FIELD)? else { return Ok(()) };
    if types.len() != h.layers as usize {
        let why = format!("{} layers instead of {}", types.len(), h.layers);
        return Err(ModelError::Hyperparameter { key: config.in_file(FIELD), why });
    }
    h.extras.expert_layers = LayerSet::Listed(types.into_iter().map(|kind| kind == "sparse").collect());
    Ok(())
}

/// Fails if some layers have a plain feed-forward network.
pub(super) fn check_all_layers(keys: &Keys<'_>) -> Result<(), ModelError> {
    let Some(config) = keys.config() else { return Ok(()) };
    config.refuse("decoder_sparse_step", &[json!(1)])?;
    config.refuse("mlp_only_layers", &[json!([])])
}
