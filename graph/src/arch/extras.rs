//! Hyperparameters that only some architectures have.

use super::experts::Experts;
use super::latent::{Growth, Indexer, Latent};
use super::recurrent::Recurrent;
use super::rope::{Rope, RopeFactors};
use serde::Serialize;

/// Some of a model's layers. A rule instead of a list takes no memory, however many layers a file claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerSet {
    /// No layer.
    None,
    /// All layers.
    All,
    /// Every n-th layer.
    Every(u32),
    /// All layers except every n-th.
    AllBut(u32),
    /// All layers from this one on.
    From(u32),
    /// Layers with a true value in this list.
    Listed(Vec<bool>),
}

impl LayerSet {
    pub(super) fn is_none(&self) -> bool {
        *self == LayerSet::None
    }

    /// Returns whether the set contains the layer with this index. A list must have a value for it.
    pub fn contains(&self, layer: u32) -> bool {
        match self {
            LayerSet::None => false,
            LayerSet::All => true,
            LayerSet::Every(period) => (layer + 1).is_multiple_of(*period),
            LayerSet::AllBut(period) => !(layer + 1).is_multiple_of(*period),
            LayerSet::From(first) => layer >= *first,
            LayerSet::Listed(list) => list[layer as usize],
        }
    }

    /// Returns the layers that are not in the set, unless the set consists of all layers from one on.
    pub(super) fn others(&self) -> Self {
        match self {
            LayerSet::All => LayerSet::None,
            LayerSet::None | LayerSet::From(_) => LayerSet::All,
            LayerSet::Every(period) => LayerSet::AllBut(*period),
            LayerSet::AllBut(period) => LayerSet::Every(*period),
            LayerSet::Listed(list) => LayerSet::Listed(list.iter().map(|is_in| !is_in).collect()),
        }
    }
}

/// Hyperparameters that only some architectures have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Extras {
    /// Number of positions to which windowed layers attend, including the token's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Whether the window is the size of chunks instead. A token attends to its own chunk only.
    #[serde(skip_serializing_if = "is_false")]
    pub is_chunked: bool,
    /// Growth of queries in layers without rotary position embedding, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// Layers that attend to the window only.
    #[serde(skip_serializing_if = "LayerSet::is_none")]
    pub windowed_layers: LayerSet,
    /// Rotary position embedding of the windowed layers, if it differs from that of the other layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windowed_rope: Option<Rope>,
    /// Layers without rotary position embedding.
    #[serde(skip_serializing_if = "LayerSet::is_none")]
    pub unrotated_layers: LayerSet,
    /// Number of key heads of each layer, if they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layer_kv_heads: Vec<u32>,
    /// Intermediate size of the feed-forward network of each layer, if they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layer_feed_forward: Vec<u32>,
    /// Elements of a token's embedding for each layer, which the layer adds to the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_embedding: Option<u32>,
    /// First of the last layers without keys and values of their own. They read those of an earlier layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_kv_from: Option<u32>,
    /// Elements per head in windowed layers, if they differ from those in other layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windowed_head_dimensions: Option<u32>,
    /// Factor of attention scores, if it is not 1 / √head size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_scale: Option<f32>,
    /// Cap of attention scores: a score s becomes cap · tanh(s / cap).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_cap: Option<f32>,
    /// Cap of logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_cap: Option<f32>,
    /// Factor of the token embedding.
    #[serde(skip_serializing_if = "is_one")]
    pub embedding_scale: f32,
    /// Factor of everything that a layer adds to the residual stream.
    #[serde(skip_serializing_if = "is_one")]
    pub residual_scale: f32,
    /// Factor of the logits.
    #[serde(skip_serializing_if = "is_one")]
    pub logit_scale: f32,
    /// Number that is added to the weights of norms. Some checkpoints store the weights less 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub norm_offset: f32,
    /// Mixture of experts that replaces the feed-forward network of some layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Layers with experts, if there are any.
    #[serde(skip_serializing_if = "is_all")]
    pub expert_layers: LayerSet,
    /// Multi-head latent attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    /// Choice of the positions to which a token attends, if there is one. It limits the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer: Option<Indexer>,
    /// Kind of the recurrent layers, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurrent: Option<Recurrent>,
    /// Layers that are recurrent.
    #[serde(skip_serializing_if = "LayerSet::is_none")]
    pub recurrent_layers: LayerSet,
    /// Layers that consist of a feed-forward network. If there are any, each other layer has no such network.
    #[serde(skip_serializing_if = "LayerSet::is_none")]
    pub feed_forward_layers: LayerSet,
    /// Name of the norm before the projection to logits.
    #[serde(skip)]
    pub output_norm: &'static str,
    /// Whether one tensor holds the gate and the up projection of each feed-forward network, if the file says so.
    #[serde(skip)]
    pub fused_gates: bool,
    /// Whether the router has biases, if the file is a GGUF file.
    #[serde(skip)]
    pub router_bias: bool,
    /// Whether layers follow the last one that predict further tokens. They are not read.
    #[serde(skip)]
    pub has_predictors: bool,
    /// Whether queries, keys and values have biases, if the file says so.
    #[serde(skip)]
    pub qkv_bias: bool,
    /// Whether one tensor of the GGUF file holds the projections to queries, keys and values.
    #[serde(skip)]
    pub fused_qkv: bool,
    /// Whether the output projection of attention has a bias.
    #[serde(skip)]
    pub output_bias: bool,
    /// Whether the projections of the feed-forward network have biases.
    #[serde(skip)]
    pub feed_forward_bias: bool,
    /// Whether queries and keys are normalised, if only some models of the architecture do so.
    #[serde(skip)]
    pub qk_norm: bool,
    /// Whether keys are also values in layers without a projection to values.
    #[serde(skip)]
    pub keys_are_values: bool,
    /// Numbers of the function of each layer's feed-forward network, if it is xIELU and the file is a GGUF file.
    #[serde(skip)]
    pub xielu: Vec<[f32; 4]>,
    /// Factors of RoPE from the configuration: for contexts of up to the original length, and for longer
    /// contexts.
    #[serde(skip)]
    pub rope_factors: Option<[Vec<f32>; 2]>,
    /// Whether the factors of RoPE leave out a part of each head, so that no other scaling replaces them.
    #[serde(skip)]
    pub keeps_rope_factors: bool,
    /// RoPE factors of the model that another scaling replaces.
    #[serde(skip)]
    pub replaced_factors: RopeFactors,
    /// Whether the model returns hidden rows, those of its last norm, instead of logits.
    #[serde(skip)]
    pub returns_hidden: bool,
}

// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(value: &f32) -> bool {
    *value == 1.0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

fn is_all(layers: &LayerSet) -> bool {
    *layers == LayerSet::All
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f32) -> bool {
    *value == 0.0
}

impl Extras {
    /// Returns the layer whose keys and values a layer reads: the last one of the same kind that has its own.
    pub(super) fn kv_layer(&self, layer: u32) -> Option<u32> {
        let first = self.shared_kv_from.filter(|first| layer >= *first).unwrap_or(layer + 1);
        let is_windowed = |layer| self.windowed_layers.contains(layer);
        (0..first).rev().find(|other| is_windowed(*other) == is_windowed(layer))
    }
}

impl Default for Extras {
    fn default() -> Self {
        Self {
            window: None,
            is_chunked: false,
            growth: None,
            windowed_layers: LayerSet::None,
            windowed_rope: None,
            unrotated_layers: LayerSet::None,
            layer_kv_heads: Vec::new(),
            layer_feed_forward: Vec::new(),
            layer_embedding: None,
            shared_kv_from: None,
            windowed_head_dimensions: None,
            score_scale: None,
            score_cap: None,
            logit_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            norm_offset: 0.0,
            experts: None,
            expert_layers: LayerSet::All,
            latent: None,
            indexer: None,
            recurrent: None,
            recurrent_layers: LayerSet::None,
            feed_forward_layers: LayerSet::None,
            output_norm: "output_norm",
            fused_gates: false,
            router_bias: false,
            has_predictors: false,
            qkv_bias: false,
            fused_qkv: false,
            output_bias: false,
            feed_forward_bias: false,
            qk_norm: false,
            keys_are_values: false,
            xielu: Vec::new(),
            rope_factors: None,
            keeps_rope_factors: false,
            replaced_factors: RopeFactors::None,
            returns_hidden: false,
        }
    }
}
