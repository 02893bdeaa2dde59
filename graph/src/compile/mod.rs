//! Compiles contiguous segments for a device. Selects kernel variants by the device's capabilities, assigns a
//! place in memory to every tensor, and emits the dispatches for each bucket.
//!
//! The capacities of the buckets are the powers of two below the prefill chunk, and the prefill chunk itself.
//! A micro-batch runs in the smallest bucket that holds its rows. Kernels read the actual number of rows from
//! the parameter block, so they do not compute padding rows. All buckets share one scratch buffer, sized for
//! the largest bucket.

mod caches;
mod crossing;
mod emit;
mod storage;

use crate::arch::{LONG_FACTORS, ROPE_FACTORS, Rope, RopeFactors, SHORT_FACTORS};
use crate::error::ModelError;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::op::{Affine, Heads, Node, Operator, OperatorGraph, Rows};
use crate::passes;
use crate::program::{CompiledStage, Program, ProgramStep, WeightBuffer, WeightContent, vector_values};
use crate::stack::{Stack, StackedMatrix};
use crate::wire_type::WireType;
use caches::{Caches, kv_layers};
use emit::Emitter;
use ragtag_hal::{Caps, Module};
use ragtag_kernels::attention::{append, partial};
use ragtag_kernels::matmul::normed;
use ragtag_kernels::params::ParamsShape;
use ragtag_kernels::{
    Activations, Kernel, Layout, Resident, TensorType, Variant, activations_for, layout_for,
};
use std::collections::BTreeSet;
use std::ops::Range;
use storage::Storage;

/// Reason why segments cannot be compiled for a device.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No variant of a kernel runs on the device.
    #[error("the device has no variant of kernel {kernel}")]
    Kernel {
        /// The kernel.
        kernel: Kernel,
    },
    /// The kernel variants selected for the device are written in more than one language.
    #[error("the kernels for the device are in several languages")]
    Languages,
    /// A buffer exceeds the device's limit.
    #[error("{what} takes {bytes} bytes; the device allows {limit} in one piece")]
    TooLarge {
        /// Description of the buffer.
        what: String,
        /// Size of the buffer in bytes.
        bytes: u64,
        /// The device's limit in bytes.
        limit: u64,
    },
}

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
    let plain = model.graph(Activations::F32);
    let caches = Caches::new(&plain, lowering);
    let weights = weight_buffers(model, &plain, segments.clone(), lowering.context, |t| layout_for(t, caps))?;
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
    for rows in buckets(lowering.chunk) {
        let params = params_shape(lowering, rows);
        let splits = |heads: Heads| attention_splits(heads, lowering, caps);
        let splits = splits_attention(lowering, caps, rows).then_some(&splits as &dyn Fn(Heads) -> u32);
        let mut graph = model.lowered(splits, |tensor_type, rows| {
            activations_for(tensor_type, lowering.activations, caps, capacity(rows, &params))
        });
        fuse(&mut graph, model, lowering, &weights, caps, &params);
        let storage = Storage::plan(&graph, segments.clone(), &params)?;
        scratch_bytes = scratch_bytes.max(storage.scratch_bytes);
        let (graph, weights, caches) = (&graph, &weights, &caches);
        let mut emitter =
            Emitter { model, graph, caps, lowering, caches, params, storage, weights, variants };
        let steps = emitter.steps(segments.clone())?;
        variants = emitter.variants;
        programs.push(Program { params, steps });
    }
    let h = model.hyperparameters();
    let last = segments.end == model.segment_count();
    let row_bytes = u64::from(h.width) * 4;
    let layers = kv_layers(&plain, &segments);
    let stage = CompiledStage {
        module: Module {
            name: format!("segments {}-{}", segments.start, segments.end.saturating_sub(1)),
            entries: variants.iter().map(|v| v.abi).collect(),
            source: ragtag_kernels::module_source(variants.iter().copied(), caps)
                .ok_or(CompileError::Languages)?,
        },
        variants: variants.iter().map(|v| format!("{} {}", v.kernel, v.name)).collect(),
        kv_bytes: layers.iter().flat_map(|(layer, heads)| caches.bytes(*layer, heads)).collect(),
        kv_blocks: lowering.cache_blocks(),
        kv_ring: caches.ring,
        is_kv_ring: layers.iter().flat_map(|(layer, _)| [caches.ring_of(*layer).is_some(); 2]).collect(),
        scratch_bytes,
        row_bytes,
        crossing_row_bytes: (lowering.wire_type != WireType::F32)
            .then(|| lowering.wire_type.row_bytes(row_bytes)),
        logit_row_bytes: if last { u64::from(h.vocabulary) * 4 } else { 0 },
        programs,
        weights,
        segments,
    };
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
    let matrix = |stack: &Stack| {
        StackedMatrix::new(model.weights(), stack, |t| layout_for(t, caps)).ok().map(|m| *m.resident())
    };
    let has = |kernel, rows| ragtag_kernels::preferred(kernel, caps, capacity(rows, params)).is_some();
    passes::fuse_norms(graph, |stack, rows| {
        matrix(stack).is_some_and(|matrix| has(Kernel::NormMatMul(matrix.tensor_type()), rows))
    });
    // If a matrix is split, a row of the gate projection and its row of the up projection may be in different
    // parts.
    let is_whole = |stack: &Stack| weights.iter().filter(|w| w.name == stack.name()).count() == 1;
    passes::fuse_gates(graph, |stack, rows| {
        let fits = |matrix: &Resident| {
            let (tensor_type, n) = (matrix.tensor_type(), matrix.rows() as u32);
            normed::has_gates(tensor_type, n) && has(Kernel::GatedMatMul(tensor_type), rows)
        };
        matrix(stack).as_ref().is_some_and(fits) && is_whole(stack)
    });
    // With several rows, one row could read keys and values while another row appends them.
    if params.rows == 1 && has(Kernel::AppendAttention(lowering.kv), Rows::Tokens) {
        passes::fuse_appends(graph, |heads| append::takes(heads.dimensions));
    }
}

/// Returns whether the device has all kernels that split attention needs for up to `rows` rows.
fn splits_attention(lowering: &Lowering, caps: &Caps, rows: u32) -> bool {
    let merges = Activations::ALL.map(Kernel::AttentionMerge);
    let mut kernels = [Kernel::AttentionPartial(lowering.kv)].into_iter().chain(merges);
    kernels.all(|kernel| ragtag_kernels::preferred(kernel, caps, rows).is_some())
}

/// Returns the number of parts into which attention is split over the cached positions. The number affects
/// the rounding of results, so it must not depend on the rows of a micro-batch. It is chosen so that each
/// compute unit gets at most one work group per row, because a second wave of work groups would double the
/// time.
fn attention_splits(heads: Heads, lowering: &Lowering, caps: &Caps) -> u32 {
    (caps.parallel_units / heads.kv.max(1)).clamp(1, most_splits(lowering))
}

/// Returns the largest number of splits for which no split is empty at the full context.
fn most_splits(lowering: &Lowering) -> u32 {
    partial::MAX_SPLITS.min(lowering.table_blocks()).max(1)
}

/// The two programs that can need the most scratch memory on any device. The first is for the largest
/// micro-batch. The second is for the largest micro-batch whose attention may be split.
pub(crate) struct Largest([(OperatorGraph, ParamsShape); 2]);

impl Largest {
    /// Lowers both programs. `form` returns the activation type for products with a given weight type.
    pub(crate) fn new(model: &Model, lowering: &Lowering, form: impl Fn(TensorType) -> Activations) -> Self {
        let program = |splits: Option<&dyn Fn(Heads) -> u32>, rows| {
            (model.lowered(splits, |t, _| form(t)), params_shape(lowering, rows))
        };
        let most = |_| most_splits(lowering);
        let split = program(Some(&most), lowering.chunk.min(partial::MAX_ROWS));
        Self([program(None, lowering.chunk), split])
    }

    /// Returns an upper bound on the scratch bytes of `segments`.
    pub(crate) fn scratch_bytes(&self, segments: Range<usize>) -> Result<u64, ModelError> {
        let mut most = 0;
        for (graph, params) in &self.0 {
            most = most.max(Storage::plan(graph, segments.clone(), params)?.scratch_bytes);
        }
        Ok(most)
    }

    /// Returns the size in bytes of the largest tensor in `segments`. Ignores dequantized weights, because a
    /// stage can split them into parts.
    pub(crate) fn tensor_bytes(&self, segments: &Range<usize>) -> u64 {
        let of_program = |(graph, params): &(OperatorGraph, ParamsShape)| {
            let nodes = graph.ordered().into_iter().map(|index| graph.node(index));
            let tensors = nodes.filter(|node| {
                segments.contains(&node.segment) && !matches!(node.operator, Operator::Widen { .. })
            });
            tensors.map(|node| output_bytes(node, params)).max()
        };
        self.0.iter().filter_map(of_program).max().unwrap_or(0)
    }
}

/// Returns the bucket capacities, in rows, for micro-batches of up to `chunk` rows.
pub fn buckets(chunk: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = (0..32).map(|bit| 1 << bit).take_while(|&rows| rows < chunk).collect();
    buckets.push(chunk);
    buckets
}

fn params_shape(lowering: &Lowering, rows: u32) -> ParamsShape {
    ParamsShape {
        rows,
        logit_rows: lowering.logit_rows.min(rows),
        sequences: lowering.sequences.min(rows),
        table_blocks: lowering.table_blocks(),
    }
}

/// Returns the weight buffers that the segments need, without duplicates. `kept` returns the resident layout
/// for a given weight type. `context` is the maximum length of a sequence.
pub(crate) fn weight_buffers(
    model: &Model,
    graph: &OperatorGraph,
    segments: Range<usize>,
    context: u32,
    kept: impl Fn(TensorType) -> Layout,
) -> Result<Vec<WeightBuffer>, ModelError> {
    let matrix = |stack: &Stack| {
        Ok::<_, ModelError>(WeightContent::Matrix(StackedMatrix::new(model.weights(), stack, &kept)?))
    };
    let mut buffers: Vec<WeightBuffer> = Vec::new();
    let mut seen = BTreeSet::new();
    for index in graph.ordered() {
        let Node { operator, segment, .. } = graph.node(index);
        if !segments.contains(segment) {
            continue;
        }
        let Some(name) = weight_name(operator).filter(|name| seen.insert(name.clone())) else { continue };
        let content = match operator {
            Operator::Embed { table } => matrix(&Stack::of(table))?,
            Operator::MatMul { weights, .. } => matrix(weights)?,
            Operator::RmsNorm { .. }
            | Operator::LayerNorm { .. }
            | Operator::Bias { .. }
            | Operator::HeadNorm { .. } => {
                let tensors = operator.tensors().to_vec();
                let columns = tensors.iter().map(|name| {
                    let tensor = model.tensor(name)?;
                    Ok(tensor.columns() * tensor.rows())
                });
                let mut values = columns.sum::<Result<_, ModelError>>()?;
                let mut pitch = None;
                let affine = match operator {
                    Operator::RmsNorm { affine, .. } => *affine,
                    Operator::HeadNorm { offset, .. } => Affine { offset: *offset, ..Affine::IDENTITY },
                    Operator::LayerNorm { affine, .. } => {
                        let width = model.tensor(&tensors[0])?.columns();
                        pitch = Some(layer_norm_pitch(width));
                        values = layer_norm_pitch(width) + width;
                        *affine
                    }
                    _ => Affine::IDENTITY,
                };
                WeightContent::Vector { tensors, values, pitch, affine }
            }
            Operator::RopeAppend { rope, .. } => rope_frequencies(model, rope, context)?,
            Operator::Scale { factors } => {
                let runs = factors.iter().map(|(factor, columns)| vec![*factor; *columns as usize]);
                let values =
                    if let [(factor, _)] = factors[..] { vec![factor] } else { runs.flatten().collect() };
                WeightContent::Generated(values.into())
            }
            _ => continue,
        };
        buffers.push(WeightBuffer { name, content, segment: *segment });
    }
    Ok(buffers)
}

/// Returns the name of the weight buffer that an operator reads, if any.
pub(crate) fn weight_name(operator: &Operator) -> Option<String> {
    match operator {
        Operator::Embed { .. }
        | Operator::RmsNorm { .. }
        | Operator::MatMul { .. }
        | Operator::LayerNorm { .. }
        | Operator::Bias { .. }
        | Operator::HeadNorm { .. } => Some(operator.tensors().join(" + ")),
        Operator::RopeAppend { rope, .. } => Some(frequencies_name(rope)),
        Operator::Scale { factors } => Some(factors_name(factors)),
        _ => None,
    }
}

/// Returns the distance in values between the weights and the biases of a layer norm in their buffer. It
/// aligns the biases to 512 bytes, as NVIDIA's OpenCL requires.
pub(crate) fn layer_norm_pitch(width: u64) -> u64 {
    width.next_multiple_of(128)
}

/// Returns the name of the generated buffer that holds the factor of each run of columns.
pub(crate) fn factors_name(factors: &[(f32, u32)]) -> String {
    if let [(factor, _)] = factors {
        return format!("factor {factor}");
    }
    let runs: Vec<_> = factors.iter().map(|(factor, columns)| format!("{factor} × {columns}")).collect();
    format!("factors {}", runs.join(", "))
}

/// Returns the name of the generated buffer that holds the RoPE frequencies.
pub(crate) fn frequencies_name(rope: &Rope) -> String {
    format!("rotary frequencies: {rope}")
}

/// Returns the RoPE frequencies. `context` is the maximum length of a sequence, which may select the factors.
fn rope_frequencies(model: &Model, rope: &Rope, context: u32) -> Result<WeightContent, ModelError> {
    let rope = &rope.for_context(context);
    let name = match rope.factors {
        RopeFactors::None => None,
        RopeFactors::File => Some(ROPE_FACTORS),
        RopeFactors::ByContext { original_context } => {
            let is_long = context > original_context;
            if let Some([short, long]) = &model.hyperparameters().extras.rope_factors {
                let factors = if is_long { long } else { short };
                return Ok(WeightContent::Generated(rope.frequencies(Some(factors)).into()));
            }
            Some(if is_long { LONG_FACTORS } else { SHORT_FACTORS })
        }
    };
    let factors = name.map(|name| model.tensor(name)).transpose()?;
    // Models without data are used only for planning, which needs sizes but no values.
    let factors = factors.filter(|tensor| model.weights().holds(tensor));
    let factors = factors.map(|tensor| vector_values(tensor, model.weights())).transpose()?;
    if let Some(bad) = factors.iter().flatten().find(|f| !(f.is_finite() && **f > 0.0)) {
        let why = format!("{bad} is not finite and positive");
        return Err(ModelError::Hyperparameter { key: name.unwrap_or(ROPE_FACTORS).into(), why });
    }
    Ok(WeightContent::Generated(rope.frequencies(factors.as_deref()).into()))
}

fn check_limits(stage: &CompiledStage, caps: &Caps) -> Result<(), CompileError> {
    let too_large = |what: &str, bytes, limit| CompileError::TooLarge { what: what.into(), bytes, limit };
    let limit = caps.max_allocation_bytes.min(caps.max_binding_bytes);
    let weights = stage.weights.iter().map(|w| (w.name.as_str(), w.bytes()));
    let kv = stage.kv_bytes.iter().map(|&bytes| ("a key or value buffer", bytes));
    let logits = u64::from(stage.max_logit_rows()) * stage.logit_row_bytes;
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

/// Returns the size in bytes of a node's output for the bucket that `params` describes.
pub(crate) fn output_bytes(node: &Node, params: &ParamsShape) -> u64 {
    let (rows, form) = match node.operator {
        Operator::Widen { rows, .. } => return ragtag_kernels::widen::out_bytes(rows, node.width),
        Operator::Quantize { output }
        | Operator::RmsNorm { output, .. }
        | Operator::SiluMul { output, .. }
        | Operator::AttentionMerge { output, .. } => (capacity(node.rows, params), output),
        _ => (capacity(node.rows, params), Activations::F32),
    };
    u64::from(rows) * form.row_bytes(node.width as usize) as u64
}

/// Returns the maximum number of rows that `rows` stands for in the bucket that `params` describes.
fn capacity(rows: Rows, params: &ParamsShape) -> u32 {
    match rows {
        Rows::Tokens => params.rows,
        Rows::Logits => params.logit_rows,
    }
}

impl Program {
    /// Returns the steps that belong to segment number `segment`.
    pub fn segment_steps(&self, segment: usize) -> impl Iterator<Item = &ProgramStep> {
        self.steps.iter().filter(move |s| s.segment == segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::RopeScaling;
    use crate::test_models;

    fn frequencies(model: &Model, context: u32) -> Vec<f32> {
        match rope_frequencies(model, &model.hyperparameters().rope, context).unwrap() {
            WeightContent::Generated(values) => values.to_vec(),
            _ => panic!("the frequencies are generated"),
        }
    }

    /// Checks that contexts up to the original length use the short factors, and longer contexts the long
    /// factors.
    #[test]
    fn the_context_selects_the_factors_of_longrope() {
        for model in test_models::phi3() {
            let rope = model.hyperparameters().rope;
            let of = |factors: [f32; 4]| rope.frequencies(Some(&factors));
            let (short, long) = (of([1.0, 1.1, 1.2, 1.5]), of([1.0, 2.0, 5.0, 9.0]));
            assert_eq!([1, 32].map(|context| frequencies(&model, context)), [short.clone(), short]);
            assert_eq!([33, 512].map(|context| frequencies(&model, context)), [long.clone(), long]);
        }
    }

    /// Checks that a requested scaling replaces factors of the model, whose tensors then have no effect.
    #[test]
    fn a_requested_scaling_replaces_factors() {
        for model in test_models::phi3() {
            let model = model.with_rope_scaling(RopeScaling::Linear(4.0)).unwrap();
            assert_eq!(model.hyperparameters().context, 128);
            let wanted = [0, 1, 2, 3].map(|pair| 10_000f64.powf(-f64::from(pair) / 4.0) / 4.0);
            for (found, wanted) in frequencies(&model, 512).into_iter().zip(wanted) {
                assert!((f64::from(found) / wanted - 1.0).abs() < 1e-6, "{found} for {wanted}");
            }
            assert_eq!(model.hyperparameters().rope.magnitude, 1.0);
        }
    }
}
