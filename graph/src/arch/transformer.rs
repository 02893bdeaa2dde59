//! Builds the graph of a decoder-only transformer. Each architecture describes its layers as [`Layer`]s.
//!
//! A model may multiply its embedding by a number, and what its layers add to the residual stream by
//! another. The graph divides the stream by one of them instead, its *unit*. This leaves the results of
//! norms unchanged if ε is divided by the square of the unit.

use super::deepseek2::INDEXER;
use super::experts::Experts;
use super::hyperparameters::Hyperparameters;
use super::latent::{Growth, Latent};
use super::names::{EMBEDDING, HEAD, LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS};
use super::recurrent::Recurrent;
use super::rope::{Rope, RopeFactors};
use crate::builder::{Builder, Conv, GatedBy};
use crate::error::ModelError;
use crate::ops::{Affine, Heads, ScanHeads, Scores};
use petgraph::stable_graph::NodeIndex;
use ragtag_kernels::recurrent::gated_norm::Function::{Sigmoid, Silu};
use ragtag_kernels::recurrent::scan::{DELTA, TILED, VECTOR};

pub(super) use ragtag_kernels::head_norm::Form as QkNorm;
pub(super) use ragtag_kernels::silu_mul::Gate as Function;

/// Constant that norms of latents add to the mean square, whatever the model's other norms add.
const LATENT_EPSILON: f32 = 1e-6;

/// Structure of a transformer block, including the options in which architectures differ.
pub(super) struct Layer {
    pub(super) attention: Attention,
    pub(super) feed_forward: FeedForward,
    pub(super) norms: Norms,
    pub(super) norm_kind: NormKind,
    /// Name of the norm before the feed-forward network.
    pub(super) ffn_norm: &'static str,
    /// Whether both halves read the same norm. The second half is then part of the first.
    pub(super) is_parallel: bool,
    /// Whether the layer has each half.
    pub(super) halves: [bool; 2],
    /// Whether the residual stream is multiplied by a number after the layer, if the file has this number.
    pub(super) has_scale: bool,
}

/// Places of the norms of each half of a layer.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Norms {
    /// Before the half.
    Before,
    /// After the half, before the residual addition.
    After,
    /// Before and after the half.
    Both,
}

/// Place of the weights of a norm of queries and keys.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NormWeights {
    /// Before RoPE.
    Before,
    /// After RoPE. The norm is then that of heads.
    After,
    /// The norm has no weights, and may follow RoPE.
    None,
}

/// Kind of a model's norms.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NormKind {
    /// RMS norm.
    Rms,
    /// Layer norm with biases.
    Layer,
    /// Layer norm without biases.
    Unbiased,
}

/// Causal attention with RoPE.
pub(super) struct Attention {
    pub(super) heads: Heads,
    pub(super) rope: Rope,
    pub(super) scores: Scores,
    /// Whether one tensor holds the projections to queries, keys and values.
    pub(super) is_fused: bool,
    /// Whether queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub(super) output_bias: bool,
    /// Norm of queries and keys before RoPE.
    pub(super) qk_norm: Option<QkNorm>,
    /// Place of the weights of this norm.
    pub(super) norm_weights: NormWeights,
    /// Growth of the queries with their position, if there is any.
    pub(super) growth: Option<Growth>,
    /// Whether keys before their norm are also values, if there is no projection to values.
    pub(super) keys_are_values: bool,
    /// Whether a norm precedes the output projection.
    pub(super) sub_norm: bool,
    /// Whether each query head has a sink, which adds to the sum of the softmax.
    pub(super) has_sinks: bool,
    /// Whether a gate follows each query head in the projection. Queries and keys then have norms of each head.
    pub(super) has_gates: bool,
}

/// Feed-forward network.
pub(super) struct FeedForward {
    /// Intermediate size, between the up and down projections.
    pub(super) hidden: u32,
    /// Function of the gate, or of the up projection if there is no gate.
    pub(super) function: Function,
    pub(super) has_gate: bool,
    /// Whether one tensor holds the gate and the up projection.
    pub(super) is_fused: bool,
    /// Whether the projections have biases. The gate and the up projection must then be two tensors.
    pub(super) bias: bool,
    /// Whether a norm precedes the down projection.
    pub(super) sub_norm: bool,
    /// Whether xIELU replaces the function. There is then no gate.
    pub(super) is_xielu: bool,
    /// Mixture of experts that replaces the network.
    pub(super) experts: Option<Experts>,
    /// Whether the mixture works beside the network instead. Both have norms of their own.
    pub(super) is_beside_experts: bool,
}

impl Layer {
    /// Returns the layer that the hyperparameters describe, without optional parts.
    pub(super) fn plain(h: &Hyperparameters, index: u32) -> Self {
        let is_windowed = h.extras.windowed_layers.contains(index);
        let windowed = h.extras.windowed_head_dimensions.filter(|_| is_windowed);
        let of_layer = |list: &[u32], usual| list.get(index as usize).copied().unwrap_or(usual);
        let kv = of_layer(&h.extras.layer_kv_heads, h.kv_heads);
        let heads = Heads { queries: h.heads, kv, dimensions: windowed.unwrap_or(h.head_dimensions) };
        let mut rope = h.extras.windowed_rope.filter(|_| is_windowed).unwrap_or(h.rope);
        if h.extras.unrotated_layers.contains(index) {
            // Nothing turns at frequencies of zero.
            rope = Rope { scale: f32::INFINITY, dimensions: rope.dimensions, ..Rope::plain() };
        }
        let scores = Scores {
            scale: h.extras.score_scale.unwrap_or(1.0 / (heads.dimensions as f32).sqrt()),
            window: h.extras.window.filter(|_| is_windowed),
            is_chunked: h.extras.is_chunked,
            cap: h.extras.score_cap,
        };
        Self {
            attention: Attention {
                heads,
                rope,
                scores,
                is_fused: h.extras.fused_qkv,
                qkv_bias: h.extras.qkv_bias,
                output_bias: h.extras.output_bias,
                qk_norm: None,
                norm_weights: NormWeights::Before,
                growth: None,
                keys_are_values: false,
                sub_norm: false,
                has_sinks: false,
                has_gates: false,
            },
            feed_forward: FeedForward {
                hidden: of_layer(&h.extras.layer_feed_forward, h.feed_forward),
                function: Function::Silu,
                has_gate: true,
                is_fused: false,
                bias: h.extras.feed_forward_bias,
                sub_norm: false,
                is_xielu: false,
                experts: h.extras.experts.filter(|_| h.extras.expert_layers.contains(index)),
                is_beside_experts: false,
            },
            norms: Norms::Before,
            norm_kind: NormKind::Rms,
            ffn_norm: "ffn_norm",
            is_parallel: false,
            halves: [true; 2],
            has_scale: false,
        }
    }
}

/// Builds the graph of a model. `layer` returns the structure of the layer with a given index. If `has_head` is
/// false, the embedding also serves as the projection to logits.
pub(super) fn build(
    layer: fn(&Hyperparameters, u32) -> Layer,
    h: &Hyperparameters,
    has_head: bool,
    b: &mut Builder<'_>,
) -> Result<(), ModelError> {
    let first = layer(h, 0);
    let extras = &h.extras;
    if extras.has_predictors {
        b.skip_layers_from(h.layers);
    }
    // The weights of norms after each half can contain the factor of what the half adds.
    let unit = if first.norms == Norms::Both { extras.embedding_scale } else { extras.residual_scale };
    let mut x = b.embed(EMBEDDING, h.width, h.vocabulary)?;
    x = b.scale(x, extras.embedding_scale / unit * b.factor(EMBEDDING));
    for factors in [h.rope.factors, extras.replaced_factors] {
        match factors {
            RopeFactors::File => b.vector(ROPE_FACTORS, h.rope.dimensions / 2)?,
            RopeFactors::ByContext { .. } if extras.rope_factors.is_none() => {
                for name in [SHORT_FACTORS, LONG_FACTORS] {
                    b.vector(name, h.rope.dimensions / 2)?;
                }
            }
            _ => {}
        }
    }
    let mut builder = Halves { h, b, unit, norm_kind: first.norm_kind };
    let blocks = h.blocks();
    for index in 0..h.layers {
        let layer = &layer(h, index);
        // The last block contains all further layers.
        let next_segment = |b: &mut Builder<'_>| {
            if index < blocks {
                b.next_segment();
            }
        };
        next_segment(builder.b);
        if layer.halves[0] {
            let normed = builder.norm_before(layer, x, &format!("blk.{index}.attn_norm"))?;
            x = builder.attention(layer, x, normed, index)?;
            if layer.is_parallel {
                x = builder.feed_forward(layer, x, normed, index)?;
            }
        }
        next_segment(builder.b);
        if layer.halves[1] && !layer.is_parallel {
            let normed = builder.norm_before(layer, x, &format!("blk.{index}.{}", layer.ffn_norm))?;
            x = builder.feed_forward(layer, x, normed, index)?;
        }
        if let Some(size) = extras.layer_embedding {
            x = builder.layer_embedding(x, index, size)?;
        }
        if let Some(scale) = builder.scale_after(layer, index) {
            x = builder.b.scale_by(x, &scale, 1, h.width)?;
        }
    }
    builder.b.next_segment();
    let x = builder.b.gather(x);
    let head = if has_head { HEAD } else { EMBEDDING };
    if extras.returns_hidden {
        let hidden = builder.norm(x, extras.output_norm, 1.0)?;
        b.matrix(head, h.width, h.vocabulary)?;
        b.picks(hidden);
        return Ok(());
    }
    // The weights of the last norm contain the factor of the logits.
    let x = builder.norm(x, extras.output_norm, extras.logit_scale / extras.logit_cap.unwrap_or(1.0))?;
    let mut logits = b.matmul(x, head, h.vocabulary)?;
    if let Some(cap) = extras.logit_cap {
        let capped = b.unary(logits, ragtag_kernels::unary::Function::Tanh);
        logits = b.scale(capped, cap);
    }
    b.picks(logits);
    Ok(())
}

/// Builds the halves of layers.
struct Halves<'a, 'b, 'w> {
    h: &'a Hyperparameters,
    b: &'b mut Builder<'w>,
    /// Number by which the residual stream is divided.
    unit: f32,
    norm_kind: NormKind,
}

impl Halves<'_, '_, '_> {
    /// Adds a norm of the residual stream, whose weights are multiplied by `factor`.
    fn norm(&mut self, x: NodeIndex, name: &str, factor: f32) -> Result<NodeIndex, ModelError> {
        let epsilon = self.h.epsilon / (self.unit * self.unit);
        let affine = Affine { scale: factor, offset: self.h.extras.norm_offset };
        match self.norm_kind {
            NormKind::Rms => self.b.rms_norm(x, &format!("{name}.weight"), epsilon, affine),
            NormKind::Layer => {
                let weights = ["weight", "bias"].map(|part| format!("{name}.{part}"));
                self.b.layer_norm(x, weights.to_vec(), epsilon, affine)
            }
            NormKind::Unbiased => self.b.layer_norm(x, vec![format!("{name}.weight")], epsilon, affine),
        }
    }

    /// Adds the norm before a half, if the layer has one.
    fn norm_before(&mut self, layer: &Layer, x: NodeIndex, name: &str) -> Result<NodeIndex, ModelError> {
        if layer.norms == Norms::After { Ok(x) } else { self.norm(x, name, 1.0) }
    }

    /// Adds a norm of what a half adds to the residual stream.
    fn norm_after(&mut self, y: NodeIndex, name: &str) -> Result<NodeIndex, ModelError> {
        let factor = self.h.extras.residual_scale / self.unit;
        let affine = Affine { scale: factor, offset: self.h.extras.norm_offset };
        self.b.rms_norm(y, name, self.h.epsilon, affine)
    }

    /// Adds a norm within a half.
    fn sub_norm(&mut self, x: NodeIndex, name: &str) -> Result<NodeIndex, ModelError> {
        let affine = Affine { scale: 1.0, offset: self.h.extras.norm_offset };
        self.b.rms_norm(x, name, self.h.epsilon, affine)
    }

    fn attention(
        &mut self,
        layer: &Layer,
        x: NodeIndex,
        normed: NodeIndex,
        index: u32,
    ) -> Result<NodeIndex, ModelError> {
        let Attention { heads, rope, scores, is_fused, qkv_bias, output_bias, qk_norm, sub_norm, .. } =
            layer.attention;
        if let Some(recurrent) = self.recurrent_at(index) {
            let y = self.recurrent(normed, index, recurrent)?;
            return Ok(self.b.add_residual(x, y));
        }
        if let Some(latent) = &self.h.extras.latent {
            let attended = self.latent_attention(layer, normed, index, latent)?;
            let y = self.b.matmul(attended, &format!("blk.{index}.attn_output.weight"), self.h.width)?;
            return Ok(self.b.add_residual(x, y));
        }
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let bias = |part: &str| format!("blk.{index}.{part}.bias");
        let (q, kv) = (heads.query_width(), heads.kv_width());
        let parts = if is_fused {
            vec![("attn_qkv", q + 2 * kv)]
        } else {
            let queries = if layer.attention.has_gates { 2 * q } else { q };
            let lacks_values = layer.attention.keys_are_values && self.b.lacks(&name("attn_v"));
            vec![("attn_q", queries), ("attn_k", kv), (if lacks_values { "attn_k" } else { "attn_v" }, kv)]
        };
        let weights: Vec<_> = parts.iter().map(|(part, width)| (name(part), *width)).collect();
        let weights: Vec<_> = weights.iter().map(|(name, width)| (&**name, *width)).collect();
        let biases: Vec<_> = parts.iter().map(|(part, _)| bias(part)).filter(|_| qkv_bias).collect();
        let kv_layer = self.h.extras.kv_layer(index).unwrap_or(index);
        let mut norms = ["attn_q_norm", "attn_k_norm"].map(name);
        let mut qkv = if kv_layer == index {
            self.b.joint_matmul(normed, &weights, &biases)?
        } else {
            // Files may have tensors that no layer reads.
            ["attn_k", "attn_v", "attn_k_norm"].iter().for_each(|part| self.b.ignore(&name(part)));
            norms[1] = norms[0].clone();
            self.b.wide_matmul(normed, &name("attn_q"), q, q + 2 * kv)?
        };
        // RoPE does not change the length of a head. The score of a query and a key does not change if the query has the
        // weights of both.
        let (norms, weights) = match layer.attention.norm_weights {
            NormWeights::Before => (Some(norms), None),
            NormWeights::After => (None, Some(norms)),
            NormWeights::None => (None, None),
        };
        if let Some(form) = qk_norm {
            let (epsilon, offset) = (self.h.epsilon, self.h.extras.norm_offset);
            qkv = self.b.head_norm(qkv, heads, norms, epsilon, offset, form)?;
        }
        if let Some(growth) = layer.attention.growth {
            qkv = self.b.grow_queries(qkv, heads, growth);
        }
        let projected = qkv;
        if layer.attention.has_gates {
            let weights = ["attn_q_norm", "attn_k_norm"].map(name);
            let (epsilon, offset) = (self.h.epsilon, self.h.extras.norm_offset);
            qkv = self.b.gated_heads(projected, heads, weights, epsilon, offset)?;
        }
        let sinks = layer.attention.has_sinks.then(|| name("attn_sinks"));
        let mut attended =
            self.b.attention(qkv, (kv_layer, kv_layer == index), heads, (rope, scores), sinks, weights)?;
        if layer.attention.has_gates {
            attended = self.b.gate_heads(attended, projected, heads);
        }
        if sub_norm {
            attended = self.sub_norm(attended, &name("attn_sub_norm"))?;
        }
        let biases = [bias("attn_output")];
        let output = [(&*name("attn_output"), self.h.width)];
        let mut y = self.b.joint_matmul(attended, &output, if output_bias { &biases } else { &[] })?;
        if layer.norms != Norms::Before {
            y = self.norm_after(y, &name("post_attention_norm"))?;
        }
        Ok(self.b.add_residual(x, y))
    }

    /// Adds latent attention without its output projection.
    fn latent_attention(
        &mut self,
        layer: &Layer,
        normed: NodeIndex,
        index: u32,
        latent: &Latent,
    ) -> Result<NodeIndex, ModelError> {
        let Attention { heads, rope, scores, .. } = layer.attention;
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        if self.h.extras.indexer.is_some() {
            // In supported contexts, the indexer chooses all positions.
            let names = INDEXER.iter().map(|(name, _)| name.replacen('N', &index.to_string(), 1));
            names.for_each(|name| self.b.ignore(&name));
        }
        let width = heads.queries * (latent.plain + latent.rotating);
        let q = match latent.query_rank {
            None => self.b.matmul(normed, &name("attn_q"), width)?,
            Some(rank) => {
                let low = self.b.matmul(normed, &name("attn_q_a"), rank)?;
                let low = self.b.rms_norm(low, &name("attn_q_a_norm"), LATENT_EPSILON, Affine::IDENTITY)?;
                self.b.matmul(low, &name("attn_q_b"), width)?
            }
        };
        let kv = self.b.matmul(normed, &name("attn_kv_a_mqa"), latent.rank + latent.rotating)?;
        let weights = ["attn_k_b", "attn_kv_a_norm"].map(name);
        let qkv = self.b.latent_rows([q, kv], heads, latent, weights, LATENT_EPSILON)?;
        let attended = self.b.attention(qkv, (index, true), heads, (rope, scores), None, None)?;
        self.b.latent_values(attended, heads, latent, &name("attn_v_b"))
    }

    /// Returns the kind of a layer, if it is recurrent.
    fn recurrent_at(&self, index: u32) -> Option<Recurrent> {
        self.h.extras.recurrent.filter(|_| self.h.extras.recurrent_layers.contains(index))
    }

    /// Adds a recurrent layer.
    fn recurrent(
        &mut self,
        normed: NodeIndex,
        index: u32,
        recurrent: Recurrent,
    ) -> Result<NodeIndex, ModelError> {
        let (name, width) = (|part: &str| format!("blk.{index}.{part}.weight"), self.h.width);
        match recurrent {
            Recurrent::ShortConv { taps } => {
                let x = self.b.matmul(normed, &name("shortconv.in_proj"), 3 * width)?;
                let weights = vec![name("shortconv.conv")];
                let conv = Conv { weights, bias: None, taps, columns: width, first: 2 * width, silu: false };
                let y = self.b.causal_conv(x, index, conv, Some([0, width]))?;
                self.b.matmul(y, &name("shortconv.out_proj"), width)
            }
            Recurrent::DeltaNet { taps, heads, is_tiled } => {
                let (keys, values) = (heads.key_width(), heads.width());
                let columns = 2 * keys + values;
                // One tensor may have the gates of both kinds, which take turns by key head.
                let is_joint = self.b.has(&name("ssm_ba"));
                let gates = if is_joint { vec!["ssm_ba"] } else { vec!["ssm_beta", "ssm_alpha"] };
                let parts: Vec<_> = ["attn_qkv", "attn_gate"].into_iter().chain(gates).map(name).collect();
                let count = if is_joint { 2 * heads.count } else { heads.count };
                let widths = [columns, values, count, count];
                let parts: Vec<_> = parts.iter().map(|part| &**part).zip(widths).collect();
                let x = self.b.joint_matmul(normed, &parts, &[])?;
                let weights = vec![name("ssm_conv1d")];
                let conv = Conv { weights, bias: None, taps, columns, first: 0, silu: true };
                let convolved = self.b.causal_conv(x, index, conv, None)?;
                let strengths = columns + values;
                let flags = DELTA | if is_tiled { TILED } else { 0 };
                let sharing = heads.count / heads.keys;
                let gates = match is_joint {
                    true => [strengths + sharing, strengths, 2 * sharing],
                    false => [strengths + heads.count, strengths, sharing],
                };
                let places = ([0, keys, 2 * keys], gates);
                let y = self.b.state_scan([convolved, x], index, heads, places, flags)?;
                let norm =
                    GatedBy { groups: heads.count, gates_first: false, first: columns, function: Silu };
                let y = self.b.gated_norm([y, x], norm, &name("ssm_norm"), self.h.epsilon)?;
                self.b.matmul(y, &name("ssm_out"), width)
            }
            Recurrent::KimiDeltaNet { taps, heads } => self.kimi_delta_net(normed, index, taps, heads),
            Recurrent::Mamba { taps, heads, has_biases } => {
                let (inner, keys) = (heads.width(), heads.key_width());
                let columns = inner + 2 * keys;
                let x = self.b.matmul(normed, &name("ssm_in"), inner + columns + heads.count)?;
                let bias = has_biases.then(|| format!("blk.{index}.ssm_conv1d.bias"));
                let weights = vec![name("ssm_conv1d")];
                let conv = Conv { weights, bias, taps, columns, first: inner, silu: true };
                let convolved = self.b.causal_conv(x, index, conv, None)?;
                let places = ([inner + keys, inner, 0], [inner + columns, 0, heads.count / heads.keys]);
                let y = self.b.state_scan([convolved, x], index, heads, places, 0)?;
                let norm = GatedBy { groups: heads.keys, gates_first: true, first: 0, function: Silu };
                let y = self.b.gated_norm([y, x], norm, &name("ssm_norm"), self.h.epsilon)?;
                self.b.matmul(y, &name("ssm_out"), width)
            }
        }
    }

    /// Adds a delta net with a decay for each dimension of the key, and a sigmoid instead of SiLU behind its norm.
    fn kimi_delta_net(
        &mut self,
        normed: NodeIndex,
        index: u32,
        taps: u32,
        heads: ScanHeads,
    ) -> Result<NodeIndex, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (keys, values, rank) = (heads.key_width(), heads.width(), heads.key_dimension);
        let parts = ["attn_q", "attn_k", "attn_v"].map(name);
        let parts: Vec<_> = parts.iter().map(|part| &**part).zip([keys, keys, values]).collect();
        let qkv = self.b.joint_matmul(normed, &parts, &[])?;
        let weights = ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"].map(name).to_vec();
        let columns = 2 * keys + values;
        let conv = Conv { weights, bias: None, taps, columns, first: 0, silu: true };
        let convolved = self.b.causal_conv(qkv, index, conv, None)?;
        let low = self.b.matmul(normed, &name("ssm_f_a"), rank)?;
        let parts = [(low, &*name("ssm_f_b"), keys), (normed, &*name("ssm_beta"), heads.count)];
        let gates = self.b.matmuls_beside(parts)?;
        let places = ([0, keys, 2 * keys], [0, keys, 1]);
        let y = self.b.state_scan([convolved, gates], index, heads, places, DELTA | VECTOR)?;
        let low = self.b.matmul(normed, &name("ssm_g_a"), rank)?;
        let gates = self.b.matmul(low, &name("ssm_g_b"), values)?;
        let norm = GatedBy { groups: heads.count, gates_first: false, first: 0, function: Sigmoid };
        let y = self.b.gated_norm([y, gates], norm, &name("ssm_norm"), self.h.epsilon)?;
        self.b.matmul(y, &name("attn_output"), self.h.width)
    }

    fn feed_forward(
        &mut self,
        layer: &Layer,
        x: NodeIndex,
        normed: NodeIndex,
        index: u32,
    ) -> Result<NodeIndex, ModelError> {
        let FeedForward { function, experts, is_beside_experts, .. } = layer.feed_forward;
        let mut y = match experts {
            Some(experts) if is_beside_experts => {
                let y = self.network(layer, normed, index)?;
                let y = self.sub_norm(y, &format!("blk.{index}.post_ffw_norm_1.weight"))?;
                let others = self.experts_beside(x, index, &experts, function)?;
                self.b.add_residual(y, others)
            }
            Some(experts) => self.experts([normed; 2], index, &experts, function)?,
            None => self.network(layer, normed, index)?,
        };
        if layer.norms != Norms::Before {
            y = self.norm_after(y, &format!("blk.{index}.post_ffw_norm.weight"))?;
        }
        // A sum overwrites its first input. A scaled stream is another tensor than the stream of the next segment.
        let is_scaled = self.scale_after(layer, index).is_some();
        Ok(if is_scaled { self.b.add_residual(y, x) } else { self.b.add_residual(x, y) })
    }

    /// Returns the name of the tensor with the number that multiplies the residual stream after a layer, if there is one.
    fn scale_after(&self, layer: &Layer, index: u32) -> Option<String> {
        let name = format!("blk.{index}.layer_output_scale.weight");
        (layer.has_scale && !self.b.lacks(&name)).then_some(name)
    }

    /// Adds a feed-forward network that all tokens use.
    fn network(&mut self, layer: &Layer, normed: NodeIndex, index: u32) -> Result<NodeIndex, ModelError> {
        let FeedForward { hidden, function, has_gate, is_fused, bias, sub_norm, is_xielu, .. } =
            layer.feed_forward;
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let biases = |part: &str| if bias { vec![format!("blk.{index}.{part}.bias")] } else { vec![] };
        // Some models name the only network of a layer like one beside experts.
        let is_shared = self.b.has(&name("ffn_gate_up_shexp"));
        let [fused, last] =
            if is_shared { ["ffn_gate_up_shexp", "ffn_down_shexp"] } else { ["ffn_up", "ffn_down"] };
        let mut inner = if !has_gate {
            let up = self.b.joint_matmul(normed, &[(&*name("ffn_up"), hidden)], &biases("ffn_up"))?;
            if is_xielu {
                self.b.xielu(up, index, &self.h.extras)?
            } else {
                self.b.unary(up, of_values(function))
            }
        } else if is_fused {
            let gate_up = self.b.matmul(normed, &name(fused), 2 * hidden)?;
            self.b.gate(gate_up, function)
        } else {
            let weights = [(&*name("ffn_gate"), hidden), (&*name("ffn_up"), hidden)];
            let both = [biases("ffn_gate"), biases("ffn_up")].concat();
            let gate_up = self.b.joint_matmul(normed, &weights, &both)?;
            self.b.gate(gate_up, function)
        };
        if sub_norm {
            inner = self.sub_norm(inner, &name("ffn_sub_norm"))?;
        }
        let down = [(&*name(last), self.h.width)];
        self.b.joint_matmul(inner, &down, &biases("ffn_down"))
    }

    /// Adds what the embedding of tokens for a layer adds to the residual stream. It depends on the tokens alone, so that no
    /// other rows than the residual stream pass between segments.
    fn layer_embedding(&mut self, x: NodeIndex, index: u32, size: u32) -> Result<NodeIndex, ModelError> {
        const HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
        let (name, h) = (|part: &str| format!("blk.{index}.{part}.weight"), self.h);
        let table = name("per_layer_token_embd");
        let own = self.b.embed(&table, size, h.vocabulary)?;
        let own = self.b.scale(own, (size as f32).sqrt() * HALF * self.b.factor(&table));
        let tokens = self.b.embed(EMBEDDING, h.width, h.vocabulary)?;
        let tokens = self.b.scale(tokens, self.b.factor(EMBEDDING));
        // The factors of the embedding and of the projection are the inverse of each other.
        let projected = self.b.matmul(tokens, &name("per_layer_model_proj"), size)?;
        let affine = Affine { scale: HALF, offset: h.extras.norm_offset };
        let projected = self.b.rms_norm(projected, "per_layer_proj_norm.weight", h.epsilon, affine)?;
        let inputs = self.b.add_residual(projected, own);
        let gate = self.b.matmul(x, &name("inp_gate"), size)?;
        let gate = self.b.scale(gate, self.unit);
        let gate = self.b.unary(gate, ragtag_kernels::unary::Function::GeluTanh);
        let y = self.b.product(gate, inputs);
        let y = self.b.matmul(y, &name("proj"), h.width)?;
        let y = self.norm_after(y, &name("post_norm"))?;
        Ok(self.b.add_residual(x, y))
    }

    /// Adds a mixture of experts with norms of its own. The router has another norm of the residual stream.
    fn experts_beside(
        &mut self,
        x: NodeIndex,
        index: u32,
        experts: &Experts,
        function: Function,
    ) -> Result<NodeIndex, ModelError> {
        let epsilon = self.h.epsilon / (self.unit * self.unit);
        let affine = Affine { scale: 1.0 / (self.h.width as f32).sqrt(), offset: 0.0 };
        let routed = self.b.rms_norm(x, &format!("blk.{index}.ffn_gate_inp.scale"), epsilon, affine)?;
        let normed = self.norm(x, &format!("blk.{index}.pre_ffw_norm_2"), 1.0)?;
        let y = self.experts([routed, normed], index, experts, function)?;
        self.sub_norm(y, &format!("blk.{index}.post_ffw_norm_2.weight"))
    }

    /// Adds a mixture of experts. The router reads `routed`, and the experts read `normed`.
    fn experts(
        &mut self,
        [routed, normed]: [NodeIndex; 2],
        index: u32,
        experts: &Experts,
        function: Function,
    ) -> Result<NodeIndex, ModelError> {
        let (name, width) = (|part: &str| format!("blk.{index}.{part}.weight"), self.h.width);
        let of_router =
            if experts.has_biases { vec![format!("blk.{index}.ffn_gate_inp.bias")] } else { vec![] };
        let router = [(&*name("ffn_gate_inp"), experts.count)];
        let logits = self.b.joint_matmul(routed, &router, &of_router)?;
        let mut choice = experts.choice;
        let numbers = if choice.is_scaled { "ffn_down_exps.scale" } else { "exp_probs_b.bias" };
        let numbers = format!("blk.{index}.{numbers}");
        choice.is_scaled &= !self.b.lacks(&numbers);
        let route = self.b.route(logits, choice, &numbers)?;
        let (count, hidden) = (experts.count, experts.feed_forward);
        let read = match (experts.latent, experts.input_choice) {
            (Some(size), _) => self.b.matmul(normed, &name("ffn_latent_down"), size)?,
            (None, Some(choice)) => {
                let weights = self.b.route(logits, choice, &numbers)?;
                self.b.scale_by_expert(normed, weights, count)
            }
            (None, None) => normed,
        };
        let inner = if experts.lacks_gates {
            let up = self.b.expert_up(read, route, index, count, hidden)?;
            self.b.unary(up, of_values(function))
        } else {
            let gate_up = self.b.expert_gate_up(read, route, index, count, hidden)?;
            match experts.rule {
                Some(rule) => self.b.expert_gate(gate_up, route, index, count, rule)?,
                None => self.b.gate(gate_up, function),
            }
        };
        let written = experts.latent.unwrap_or(width);
        let mut y = self.b.expert_down(inner, route, index, (count, experts.has_biases), written)?;
        if experts.latent.is_some() {
            y = self.b.matmul(y, &name("ffn_latent_up"), width)?;
        }
        let Some(hidden) = experts.shared else { return Ok(y) };
        let shared = self.shared_network(normed, index, experts, function, hidden)?;
        if !experts.shared_gate {
            return Ok(self.b.add_residual(y, shared));
        }
        let factor = self.b.matmul(normed, &name("ffn_gate_inp_shexp"), 1)?;
        let factor = self.b.unary(factor, ragtag_kernels::unary::Function::Sigmoid);
        Ok(self.b.add_scaled(y, shared, factor))
    }

    /// Adds the network beside the experts that all tokens use.
    fn shared_network(
        &mut self,
        normed: NodeIndex,
        index: u32,
        experts: &Experts,
        function: Function,
        hidden: u32,
    ) -> Result<NodeIndex, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let inner = if experts.lacks_gates {
            let up = self.b.matmul(normed, &name("ffn_up_shexp"), hidden)?;
            self.b.unary(up, of_values(function))
        } else if self.b.has(&name("ffn_gate_up_shexp")) {
            let gate_up = self.b.matmul(normed, &name("ffn_gate_up_shexp"), 2 * hidden)?;
            self.b.gate(gate_up, function)
        } else {
            let weights = [(&*name("ffn_gate_shexp"), hidden), (&*name("ffn_up_shexp"), hidden)];
            let gate_up = self.b.joint_matmul(normed, &weights, &[])?;
            self.b.gate(gate_up, function)
        };
        self.b.matmul(inner, &name("ffn_down_shexp"), self.h.width)
    }
}

/// Returns the function of single values that a network without a gate applies.
fn of_values(function: Function) -> ragtag_kernels::unary::Function {
    match function {
        Function::Silu => ragtag_kernels::unary::Function::Silu,
        Function::GeluTanh => ragtag_kernels::unary::Function::GeluTanh,
        Function::SquaredRelu => ragtag_kernels::unary::Function::SquaredRelu,
    }
}
