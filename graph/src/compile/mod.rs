//! Compiles contiguous segments for a device. Selects kernel variants by the device's capabilities, assigns a
//! place in memory to every tensor, and emits the dispatches for each bucket.
//!
//! The capacities of the buckets are the powers of two below the prefill chunk, and the prefill chunk itself.
//! A micro-batch runs in the smallest bucket that holds its rows. Kernels read the actual number of rows from
//! the parameter block, so they do not compute padding rows. All buckets share one scratch buffer, sized for
//! the largest bucket.
//!
//! Up to [`SPLIT_ROWS`] rows, attention is split over the positions of each row. The rows of a longer
//! micro-batch share loads of keys and values instead, as far as they belong to one sequence. Decode rows
//! belong to different sequences. Therefore a larger bucket has two more programs, which split attention of
//! decode rows: one for decode rows only, and one for decode rows that precede other rows. Attention with sinks is
//! split in all programs.

mod buffers;
mod caches;
mod crossing;
mod emit;
mod storage;
#[cfg(test)]
mod tests;

pub(crate) use buffers::weight_buffers;
pub(crate) use caches::state_bytes;

use crate::error::{CompileError, ModelError};
use crate::graph::OperatorGraph;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::ops::{Heads, Output, Rows};
use crate::passes::{self, SplitRows, Splits};
use crate::program::{Program, RowKind};
use crate::rope_lengths::RopeLengths;
use crate::stack::{Stack, StackShape};
use crate::stage::{CompiledStage, StageResult};
use crate::weight_buffer::WeightBuffer;
use crate::wire_type::WireType;
use caches::Caches;
use emit::Emitter;
use petgraph::stable_graph::NodeIndex;
use ragtag_hal::{Caps, Module};
use ragtag_kernels::attention::{append, partial};
use ragtag_kernels::matmul::{self, normed};
use ragtag_kernels::params::ParamsShape;
use ragtag_kernels::{Activations, Kernel, TensorType, Variant, activations_for, layout_for, preferred};
use std::ops::Range;
use storage::{Storage, capacity, output_bytes};

/// Maximum number of rows for which attention is split whatever sequences they belong to. More rows fill a
/// device even without splits, and it is better to let the rows of a sequence share their loads.
const SPLIT_ROWS: u32 = 32;

/// Number of work groups of split attention per compute unit that keeps a device busy, even though sequences
/// differ in length.
const GROUPS_PER_UNIT: u32 = 8;

/// Compiles `segments` of `model` for a device with the capabilities `caps`.
///
/// # Errors
/// Fails if the model is invalid, or if the device does not support a kernel or the size of a buffer. The
/// error names the kernel or buffer.
pub fn compile(
    model: &Model,
    segments: Range<usize>,
    lowering: &Lowering,
    caps: &Caps,
) -> Result<CompiledStage, CompileError> {
    if let Some(tensor) = model.weights().without_data() {
        return Err(ModelError::NoData { name: tensor.name.clone() }.into());
    }
    model.check_kv(lowering.kv)?;
    model.check_context(lowering.context)?;
    let wire_type = lowering.wire_type.of_rows(model.hyperparameters().width.into());
    let lowering = &Lowering { wire_type, ..*lowering };
    let plain = model.graph(Activations::F32);
    let caches = Caches::new(&plain, &segments, lowering);
    let nodes = plain.within(&segments);
    let weights = weight_buffers(model, &plain, &nodes, |t| layout_for(t, caps))?;
    let limit = caps.max_allocation_bytes.min(caps.max_binding_bytes);
    let is_widened = |t: TensorType| {
        let form = |rows| activations_for(t, lowering.activations, caps, rows);
        t.block_values() > 1 && buckets(lowering.chunk).into_iter().any(|rows| form(rows) == Activations::F16)
    };
    let weights = weights.into_iter().map(|weight| weight.split(limit, is_widened));
    let weights = weights.collect::<Result<Vec<_>, _>>()?.concat();
    let mut variants: Vec<&'static Variant> = Vec::new();
    let mut programs = Vec::new();
    let mut scratch_bytes = 0;
    for (params, kind) in shapes(lowering) {
        let is_fast = splits_attention(lowering, caps, params.rows);
        let split = split_rows(kind, &params).filter(|_| is_fast);
        if kind != RowKind::Any && split.is_none() {
            continue;
        }
        let count = |heads, rows| if is_fast { attention_splits(heads, rows, &params, caps) } else { 1 };
        let shares = kind == RowKind::Any
            && params.rows > SPLIT_ROWS
            && preferred(Kernel::AttentionShared(lowering.kv), caps, params.rows).is_some();
        let splits = Some(Splits { rows: split, count: &count, shares });
        let form = |t, rows| activations_for(t, lowering.activations, caps, capacity(rows, &params));
        let has = |kernel, rows| preferred(kernel, caps, capacity(rows, &params)).is_some();
        let mut graph = model.lowered(splits, form, has);
        fuse(&mut graph, model, lowering, &weights, caps, &params);
        let storage = Storage::plan(&graph, &graph.within(&segments), &params);
        scratch_bytes = scratch_bytes.max(storage.scratch_bytes);
        let (graph, weights, caches) = (&graph, &weights, &caches);
        let mut emitter =
            Emitter { model, graph, caps, lowering, caches, params, storage, weights, variants };
        let steps = emitter.steps(segments.clone())?;
        variants = emitter.variants;
        programs.push(Program { params, kind, steps });
    }
    let h = model.hyperparameters();
    let last = segments.end == model.segment_count();
    let row_bytes = u64::from(h.width) * 4;
    let (kv_bytes, is_kv_ring) = caches.buffers().unzip();
    let stage = CompiledStage {
        module: Module {
            name: format!("segments {}-{}", segments.start, segments.end.saturating_sub(1)),
            entries: variants.iter().map(|v| v.abi).collect(),
            source: ragtag_kernels::module_source(variants.iter().copied(), caps)
                .ok_or(CompileError::Languages)?,
        },
        variants: variants.iter().map(|v| format!("{} {}", v.kernel, v.name)).collect(),
        kv_bytes,
        kv_blocks: lowering.cache_blocks(),
        kv_ring: caches.ring,
        rope_lengths: RopeLengths::of(model)?,
        is_kv_ring,
        scratch_bytes,
        row_bytes,
        crossing_row_bytes: (lowering.wire_type != WireType::F32)
            .then(|| lowering.wire_type.row_bytes(row_bytes)),
        result: match last {
            true => h.result(),
            false => StageResult::Nothing,
        },
        programs,
        weights,
        segments,
    };
    stage.check_slices();
    check_limits(&stage, caps)?;
    Ok(stage)
}

/// Fuses operators if the device has a fused kernel for the number of rows in `params`.
fn fuse(
    graph: &mut OperatorGraph,
    model: &Model,
    lowering: &Lowering,
    weights: &[WeightBuffer],
    caps: &Caps,
    params: &ParamsShape,
) {
    let has = |kernel, rows| preferred(kernel, caps, capacity(rows, params)).is_some();
    let shape = |stack: &Stack| stack.shape(model.weights());
    passes::fuse_norms(graph, |stack, rows| {
        let StackShape { tensor_type, columns, .. } = shape(stack);
        matmul::takes_columns(columns) && has(Kernel::NormMatMul(tensor_type), rows)
    });
    // If a matrix is split, a row of the gate projection and its row of the up projection may be in different
    // parts.
    let is_whole = |stack: &Stack| weights.iter().filter(|w| w.name == stack.name()).count() == 1;
    passes::fuse_gates(graph, |stack, rows| {
        let StackShape { tensor_type, rows: n, .. } = shape(stack);
        normed::has_gates(tensor_type, n) && has(Kernel::GatedMatMul(tensor_type), rows) && is_whole(stack)
    });
    // With several rows, one row could read keys and values while another row appends them.
    if params.rows == 1 && has(Kernel::AppendAttention(lowering.kv), Rows::Tokens) {
        // The fused kernel has one table of frequencies.
        passes::fuse_appends(graph, |append| {
            append::takes(append.heads.dimensions) && !append.rope.depends_on_length()
        });
    }
    graph.check();
}

/// Returns whether the device has all kernels that split attention needs for up to `rows` rows.
fn splits_attention(lowering: &Lowering, caps: &Caps, rows: u32) -> bool {
    let merges = Activations::ALL.map(Kernel::AttentionMerge);
    let mut kernels = [Kernel::AttentionPartial(lowering.kv)].into_iter().chain(merges);
    kernels.all(|kernel| preferred(kernel, caps, rows).is_some())
}

/// Returns the rows whose attention a program splits.
fn split_rows(kind: RowKind, params: &ParamsShape) -> Option<SplitRows> {
    match kind {
        RowKind::Any => (params.rows <= SPLIT_ROWS).then_some(SplitRows::All),
        RowKind::Decode => Some(SplitRows::All),
        RowKind::Mixed => Some(SplitRows::Decode),
    }
}

/// Returns the number of parts into which attention is split over the cached positions. The number affects the
/// rounding of results, so it must not depend on the rows of a micro-batch. A single row gets at most one work
/// group per compute unit, because a second wave of work groups would double its time. Many rows fill the
/// device with fewer parts, and longer parts cost less. The partial results must fit one buffer.
fn attention_splits(heads: Heads, rows: SplitRows, params: &ParamsShape, caps: &Caps) -> u32 {
    let (units, kv_heads) = (caps.parallel_units, heads.kv.max(1));
    let rows = if rows == SplitRows::Decode { params.sequences } else { params.rows };
    let filling = units.saturating_mul(GROUPS_PER_UNIT).div_ceil(kv_heads.saturating_mul(rows));
    let limit_bytes = caps.max_allocation_bytes.min(caps.max_binding_bytes);
    let values = u64::from(params.rows) * u64::from(heads.queries) * u64::from(heads.dimensions + 2);
    let fitting = u32::try_from(limit_bytes / (4 * values).max(1)).unwrap_or(u32::MAX);
    (units / kv_heads).min(filling).min(fitting).clamp(1, most_splits(params))
}

/// Returns the largest number of splits. No split is empty at the full context, and the partial results of a
/// large bucket take about as much scratch memory as those of [`SPLIT_ROWS`] rows.
fn most_splits(params: &ParamsShape) -> u32 {
    let most = partial::MAX_SPLITS.min((SPLIT_ROWS * partial::MAX_SPLITS).div_ceil(params.rows));
    most.min(params.table_blocks).max(1)
}

/// The programs that can need the most scratch memory on any device: those for the largest micro-batches, and
/// that for the largest one of any rows whose attention is split.
pub(crate) struct Largest(Vec<Lowered>);

/// A program before emission.
struct Lowered {
    graph: OperatorGraph,
    params: ParamsShape,
    /// Nodes of each segment.
    nodes: Vec<Vec<NodeIndex>>,
}

impl Largest {
    /// Lowers the programs. `form` returns the activation type for products with a given weight type, and `has` returns
    /// whether the device has a fast variant of an optional kernel.
    pub(crate) fn new(
        model: &Model,
        lowering: &Lowering,
        form: impl Fn(TensorType) -> Activations,
        has: impl Fn(Kernel) -> bool,
    ) -> Self {
        let program = |(params, kind): (ParamsShape, RowKind)| {
            let count = |_, _| most_splits(&params);
            let splits = Some(Splits { rows: split_rows(kind, &params), count: &count, shares: false });
            let graph = model.lowered(splits, |t, _| form(t), |kernel, _| has(kernel));
            let nodes = graph.by_segment(model.segment_count());
            Lowered { graph, params, nodes }
        };
        let shapes = shapes(lowering);
        let last = |is: &dyn Fn(&(ParamsShape, RowKind)) -> bool| shapes.iter().copied().rev().find(is);
        let few = last(&|(params, kind)| *kind == RowKind::Any && params.rows <= SPLIT_ROWS);
        let kinds = [RowKind::Any, RowKind::Decode, RowKind::Mixed];
        let largest = kinds.into_iter().filter_map(|kind| last(&|(_, other)| *other == kind));
        Self(few.into_iter().chain(largest).map(program).collect())
    }

    /// Returns an upper bound on the scratch bytes of a segment.
    pub(crate) fn scratch_bytes(&self, segment: usize) -> u64 {
        let bytes = |l: &Lowered| Storage::plan(&l.graph, &l.nodes[segment], &l.params).scratch_bytes;
        self.0.iter().map(bytes).max().expect("a program")
    }

    /// Returns the size in bytes of the largest tensor in a segment. Ignores dequantized weights, because a
    /// stage can split them into parts.
    pub(crate) fn tensor_bytes(&self, segment: usize) -> u64 {
        let of_program = |Lowered { graph, params, nodes }: &Lowered| {
            let nodes = nodes[segment].iter().map(|index| graph.node(*index));
            let rows = nodes.filter(|node| matches!(node.operator.lower().output(), Output::Rows(_)));
            rows.map(|node| output_bytes(node, params)).max()
        };
        self.0.iter().filter_map(of_program).max().expect("each segment has nodes")
    }
}

/// Returns the bucket capacities, in rows, for micro-batches of up to `chunk` rows.
pub fn buckets(chunk: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = (0..32).map(|bit| 1 << bit).take_while(|&rows| rows < chunk).collect();
    buckets.push(chunk);
    buckets
}

/// Returns the capacities of the programs, and the rows that each is for.
fn shapes(lowering: &Lowering) -> Vec<(ParamsShape, RowKind)> {
    let most_decode_rows = lowering.sequences.min(lowering.logit_rows);
    let (mut out, mut smaller) = (Vec::new(), 0);
    for rows in buckets(lowering.chunk) {
        if rows > SPLIT_ROWS && smaller < most_decode_rows {
            out.push((params_shape(lowering, rows.min(most_decode_rows)), RowKind::Decode));
        }
        if rows > SPLIT_ROWS && lowering.sequences > 1 {
            out.push((params_shape(lowering, rows), RowKind::Mixed));
        }
        out.push((params_shape(lowering, rows), RowKind::Any));
        smaller = rows;
    }
    out
}

fn params_shape(lowering: &Lowering, rows: u32) -> ParamsShape {
    ParamsShape {
        rows,
        logit_rows: lowering.logit_rows.min(rows),
        sequences: lowering.sequences.min(rows),
        table_blocks: lowering.table_blocks(),
    }
}

fn check_limits(stage: &CompiledStage, caps: &Caps) -> Result<(), CompileError> {
    let too_large = |what: &str, bytes, limit| CompileError::TooLarge { what: what.into(), bytes, limit };
    let limit = caps.max_allocation_bytes.min(caps.max_binding_bytes);
    let weights = stage.weights.iter().map(|w| (w.name.as_str(), w.bytes()));
    let kv = stage.kv_bytes.iter().map(|&bytes| ("a key or value buffer", bytes));
    let logits = stage.max_logits_bytes();
    if let Some((what, bytes)) = weights.chain(kv).chain([("the logits", logits)]).find(|w| w.1 > limit) {
        return Err(too_large(what, bytes, limit));
    }
    if stage.scratch_bytes > caps.max_allocation_bytes {
        return Err(too_large("scratch", stage.scratch_bytes, caps.max_allocation_bytes));
    }
    let steps = stage.programs.iter().flat_map(|program| &program.steps);
    match steps.flat_map(|step| &step.slices).map(|slice| slice.bytes).max() {
        Some(bytes) if bytes > caps.max_binding_bytes => {
            Err(too_large("a tensor of a micro-batch", bytes, caps.max_binding_bytes))
        }
        _ => Ok(()),
    }
}
