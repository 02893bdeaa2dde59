//! Llama 4 (text): every fourth layer has no RoPE, and the others attend to chunks of positions. A sigmoid router chooses one
//! expert, and its weight multiplies the expert's input. A network that all tokens use works beside the experts. The published
//! checkpoints wrap the text model in a vision model.

use super::architecture::{ATTENTION_BIAS, Architecture, ExpertOrder, USUAL, kv_heads, rope_base};
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::latent::Growth;
use super::names::{COMMON, NORMS};
use super::rope::RopePairing;
use super::smollm3;
use super::transformer::{Attention, Layer, NormWeights, QkNorm};
use crate::error::ModelError;
use ragtag_kernels::experts::route::{Choice, Gate};
use serde_json::json;

/// Positions of a chunk, and of a period of the growth of queries, in files that say nothing else.
const POSITIONS: u32 = 8192;

pub(super) static LLAMA4: Architecture = Architecture {
    name: "llama4",
    classes: &["Llama4ForCausalLM"],
    multimodal_classes: &["Llama4ForConditionalGeneration"],
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    expert_order: ExpertOrder::Columns,
    multimodal_expert_order: ExpertOrder::Columns,
    // The usual field has the size of an expert.
    aliases: &[
        ("intermediate_size", "moe_intermediate_size"),
        ("intermediate_size_mlp", "intermediate_size"),
    ],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(8),
        rope_base(5e5),
        ("head_dim", Setting::Count(128)),
        ("attention_chunk_size", Setting::Count(POSITIONS)),
        ("num_local_experts", Setting::Count(16)),
        ("num_experts_per_tok", Setting::Count(1)),
        ("moe_intermediate_size", Setting::Count(8192)),
        ("intermediate_size", Setting::Count(16_384)),
    ],
    biases: ATTENTION_BIAS,
    read: |keys, h| {
        smollm3::unrotated_layers(keys, h)?;
        chunks(keys, h)?;
        h.extras.growth = growth(keys)?;
        read_experts(keys, h)?;
        // GGUF files do not say which models normalise queries and keys. The one with 128 experts does not.
        let is_usual =
            h.extras.experts.is_some_and(|experts| experts.count != 128) || keys.config().is_some();
        h.extras.qk_norm = keys.flag("", "use_qk_norm")?.unwrap_or(is_usual);
        Ok(())
    },
    layer,
    tensors: &[
        COMMON,
        NORMS,
        &[
            ("blk.N.ffn_gate.weight", "model.layers.N.feed_forward.gate_proj.weight"),
            ("blk.N.ffn_up.weight", "model.layers.N.feed_forward.up_proj.weight"),
            ("blk.N.ffn_down.weight", "model.layers.N.feed_forward.down_proj.weight"),
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.feed_forward.router.weight"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.feed_forward.experts.gate_up_proj"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.feed_forward.experts.down_proj"),
            ("blk.N.ffn_gate.M.weight", "model.layers.N.feed_forward.experts.M.gate_proj.weight"),
            ("blk.N.ffn_up.M.weight", "model.layers.N.feed_forward.experts.M.up_proj.weight"),
            ("blk.N.ffn_down.M.weight", "model.layers.N.feed_forward.experts.M.down_proj.weight"),
            ("blk.N.ffn_gate_shexp.weight", "model.layers.N.feed_forward.shared_expert.gate_proj.weight"),
            ("blk.N.ffn_up_shexp.weight", "model.layers.N.feed_forward.shared_expert.up_proj.weight"),
            ("blk.N.ffn_down_shexp.weight", "model.layers.N.feed_forward.shared_expert.down_proj.weight"),
        ],
    ],
    ..USUAL
};

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    let rotates = !h.extras.unrotated_layers.contains(index);
    let qk_norm = (rotates && h.extras.qk_norm).then_some(QkNorm::Heads);
    let growth = h.extras.growth.filter(|_| !rotates);
    Layer {
        attention: Attention { qk_norm, norm_weights: NormWeights::None, growth, ..plain.attention },
        ..plain
    }
}

/// Reads the size of chunks, and the layers that attend to them: those with RoPE, unless the file lists their kinds.
fn chunks(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    const FIELD: &str = "layer_types";
    let mut layers = h.extras.unrotated_layers.others();
    let mut size = keys.count("attention.chunk_size", "attention_chunk_size")?;
    keys.mark(FIELD);
    match keys.config() {
        // Older files have no key.
        None => size = size.or(keys.count("attention.sliding_window", "")?).or(Some(POSITIONS)),
        Some(config) => {
            if let Some(types) = config.texts(FIELD)? {
                const KINDS: [&str; 2] = ["full_attention", "chunked_attention"];
                if types.len() != h.layers as usize || types.iter().any(|kind| !KINDS.contains(kind)) {
                    let why =
                        format!("does not list {} layers of the types {}", h.layers, KINDS.join(" and "));
                    return Err(ModelError::Hyperparameter { key: config.in_file(FIELD), why });
                }
                layers = LayerSet::Listed(types.iter().map(|kind| *kind == KINDS[1]).collect());
            }
        }
    }
    if size.is_some() {
        (h.extras.window, h.extras.windowed_layers, h.extras.is_chunked) = (size, layers, true);
    }
    Ok(())
}

/// Returns the growth of queries in layers without RoPE.
fn growth(keys: &Keys<'_>) -> Result<Option<Growth>, ModelError> {
    let beta = keys.float("attention.temperature_scale", "attn_scale")?.unwrap_or(0.1);
    let period = keys.count("attention.temperature_length", "floor_scale")?.unwrap_or(POSITIONS);
    // Published files have a number instead of a truth value.
    let is_off = |value| [json!(false), json!(0)].contains(value);
    let is_off = keys.config().and_then(|config| config.find("attn_temperature_tuning")).is_some_and(is_off);
    Ok((!is_off).then_some(Growth { beta, period }))
}

fn read_experts(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let usual = Choice { gate: Gate::Sigmoid, ..Choice::softmax(1, false) };
    let found = experts::read(keys, h, usual)?;
    if found.used != 1 {
        let key = keys.label("expert_used_count", "num_experts_per_tok");
        let what = format!("{key} = {} with weights before the experts", found.used);
        return Err(ModelError::Unsupported { what });
    }
    let period = keys.count("interleave_moe_layer_step", "interleave_moe_layer_step")?.unwrap_or(1);
    let listed = keys.layers_at("moe_layers", h.layers)?;
    h.extras.expert_layers = listed.unwrap_or(LayerSet::Every(period));
    // Converters write this key, which llama.cpp does not read.
    keys.whole("leading_dense_block_count", "")?;
    // The softmax over the only chosen expert is 1.
    let (choice, input_choice) = (Choice::softmax(1, true), Some(found.choice));
    h.extras.experts = Some(Experts { shared: Some(found.feed_forward), choice, input_choice, ..found });
    Ok(())
}
