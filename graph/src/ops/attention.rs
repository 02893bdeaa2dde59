//! Attention in one launch, or in two.

use super::kv::{CacheUse, Heads};
use super::lower::{Call, Cost, Lower, Output, Shape, Site, Work};
use super::rope_append::RopeAppend;
use super::weight::{Affine, Weight};
use ragtag_kernels::attention::{CHUNKS, NO_WINDOW};
use ragtag_kernels::params::DECODE_ROWS;
use ragtag_kernels::{Activations, Kernel};

/// Rules for the scores of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor by which the scores are multiplied.
    pub scale: f32,
    /// Number of positions to which a token attends, including its own. `None` stands for all positions.
    pub window: Option<u32>,
    /// Whether the window is the size of chunks instead, and a token attends to its own chunk only.
    pub is_chunked: bool,
    /// Cap of the multiplied scores: a score s becomes cap · tanh(s / cap).
    pub cap: Option<f32>,
}

/// Causal attention over the KV cache. The first columns of each input row are the queries. Keys and values may follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Layer that owns the cache.
    pub layer: u32,
    /// Heads of the input.
    pub heads: Heads,
    /// Rules for the scores.
    pub scores: Scores,
    /// Name of the tensor with a sink for each query head, if there are sinks: scores without values, which add to the sum of
    /// the softmax. All programs split such attention, also that of prompts, because only [`AttentionMerge`] reads sinks.
    pub sinks: Option<String>,
    /// Number of splits of the second input, the partial results of decode rows. `None` if the operator computes
    /// all rows.
    pub splits: Option<u32>,
}

impl Lower for Attention {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[0], &[0, 1]]
    }

    fn shape(&self, x: Shape) -> Option<Shape> {
        let width = self.heads.query_width();
        let has_all = x.width == width + 2 * self.heads.kv_width();
        assert!(has_all || x.width == width, "{} columns of queries for {self:?}", x.width);
        Some(Shape { width, ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        sinks(self.sinks.as_ref())
    }

    fn cache(&self) -> Option<CacheUse> {
        Some(CacheUse { layer: self.layer, heads: self.heads, window: self.scores.window })
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let flops_per_position = work.rows * 4 * u64::from(self.heads.query_width());
        let (window, attends_to_all) = (self.scores.window, self.scores.window.is_none());
        Cost { flops_per_position, window, attends_to_all, ..Cost::default() }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        assert!(self.sinks.is_none(), "attention with sinks that is not split");
        let mut calls = vec![self.launch(site)];
        // Both launches write rows of the output.
        calls.extend(self.splits.map(|splits| {
            let partials = site.inputs[1].expect("partial results").argument;
            let heads = [self.heads.queries, self.heads.dimensions];
            Call {
                kernel: Kernel::AttentionMerge(Activations::F32),
                arguments: vec![site.params, partials, site.output.argument],
                constants: [&[site.rows, DECODE_ROWS], &heads[..], &[splits]].concat(),
            }
        }));
        calls
    }
}

impl Attention {
    /// Returns the launch of a kernel that reads the KV cache.
    fn launch(&self, site: &Site) -> Call {
        let (x, cache) = (site.x(), site.cache());
        let mut constants = site.cache_constants(&self.heads);
        constants.extend([self.scores.scale.to_bits(), x.width]);
        let chunks = if self.scores.is_chunked { CHUNKS } else { 0 };
        constants.push(self.scores.window.map_or(NO_WINDOW, |window| window | chunks));
        // A cap of 0 stands for none.
        constants.push(self.scores.cap.unwrap_or(0.0).to_bits());
        let queries = x.columns(0, self.heads.query_width());
        let arguments = vec![site.params, queries, cache.keys, cache.values, site.output.argument];
        Call { kernel: Kernel::Attention(cache.kv), arguments, constants }
    }
}

/// Returns the weights of attention with the sinks `name`.
fn sinks(name: Option<&String>) -> Vec<Weight> {
    let vector = |name: &String| Weight::Vector { tensors: vec![name.clone()], affine: Affine::IDENTITY };
    name.map(vector).into_iter().collect()
}

/// First step of split attention. Computes one partial result for each split of the cached positions.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPartial {
    /// The attention.
    pub attention: Attention,
    /// Number of splits.
    pub splits: u32,
    /// Word of the parameter block that holds the number of rows.
    pub count: u32,
    /// Whether rows share loads of keys and values. There is one split.
    pub is_shared: bool,
    /// RoPE and KV append that are fused into this operator, if any.
    pub appends: Option<RopeAppend>,
}

impl Lower for AttentionPartial {
    fn shape(&self, x: Shape) -> Option<Shape> {
        let Heads { queries, dimensions, .. } = self.attention.heads;
        // The partial result of one head consists of its values and two numbers for the merge.
        Some(Shape { width: queries * self.splits * (dimensions + 2), ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        self.appends.iter().flat_map(RopeAppend::weights).collect()
    }

    fn cache(&self) -> Option<CacheUse> {
        self.attention.cache()
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        self.attention.cost(work)
    }

    /// Returns a launch that first rotates its row and appends keys and values if RoPE and KV append are fused.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let (mut call, kv) = (self.attention.launch(site), site.cache().kv);
        call.kernel = if self.is_shared { Kernel::AttentionShared(kv) } else { Kernel::AttentionPartial(kv) };
        call.constants.extend([self.splits, self.count]);
        if let Some(append) = &self.appends {
            call.kernel = Kernel::AppendAttention(kv);
            call.constants.extend(append.constants());
            call.arguments[1] = site.x().argument;
            call.arguments.push(site.weight(0));
        }
        vec![call]
    }
}

/// Second step of split attention. Combines the partial results of an [`AttentionPartial`].
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionMerge {
    /// Heads of the attention.
    pub heads: Heads,
    /// Number of splits.
    pub splits: u32,
    /// Sinks of the [`Attention`].
    pub sinks: Option<String>,
    /// Type of the output: f32 with sinks.
    pub output: Activations,
}

impl Lower for AttentionMerge {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: self.heads.query_width(), ..x })
    }

    fn weights(&self) -> Vec<Weight> {
        sinks(self.sinks.as_ref())
    }

    fn output(&self) -> Output {
        Output::Rows(self.output)
    }

    fn output_type(&mut self) -> Option<&mut Activations> {
        if self.sinks.is_some() { None } else { Some(&mut self.output) }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let constants = [self.heads.queries, self.heads.dimensions, self.splits];
        let kernel = match self.sinks {
            Some(_) => Kernel::AttentionMergeSinks,
            None => Kernel::AttentionMerge(self.output),
        };
        vec![site.row_call(kernel, &constants)]
    }
}
