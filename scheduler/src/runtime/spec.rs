//! Inputs of a pipeline, and their validation.

use crate::actor::WeightSource;
use crate::actor::passing::same_kv_blocks;
use crate::actor::streaming::{Streamed, Streaming};
use crate::core::RunShape;
use crate::error::{Error, Result};
use crate::runtime::shared_weights::shared_weights;
use ragtag_graph::{CompiledStage, RopeLengths, StageResult};
use ragtag_hal::Device;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_planner::Chunks;
use ragtag_planner::streaming::{Arenas, FEWEST, passing_blocks, wrong_arenas, wrong_from_file};
use ragtag_transfer::{Route, Routes};
use std::time::Duration;

/// Devices and stages of a pipeline.
pub struct PipelineSpec {
    /// Devices, each wrapped in [`ragtag_hal::Checked`]. Nothing has been submitted to them yet, and each
    /// runs at least one stage.
    pub devices: Vec<Box<dyn Device>>,
    /// Stages in pipeline order.
    pub stages: Vec<StageSpec>,
    /// The prefill stage. It consists of all segments, and computes long prompts in place of the other
    /// stages. It uses the weights and the KV cache of the other stages of its device. The keys and values of
    /// other segments pass to the stages that decode.
    pub prefill: Option<StageSpec>,
}

impl PipelineSpec {
    /// Returns all stages. The prefill stage is the last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &StageSpec> {
        self.stages.iter().chain(&self.prefill)
    }
}

/// A stage: its device, its compiled program and its weights.
pub struct StageSpec {
    /// Index of the stage's device in [`PipelineSpec::devices`]. Neighbouring stages have different devices.
    pub device: usize,
    /// The compiled stage.
    pub compiled: CompiledStage,
    /// Segments of the stage whose weights are streamed, in ascending order. Their weights stay in host
    /// memory and are copied to the device for each micro-batch.
    pub streamed: Vec<usize>,
    /// Number of arenas that the streamed segments share. `None` stands for the fewest.
    pub arenas: Option<usize>,
    /// Streamed segments whose weights are read from `weights` for each micro-batch, in ascending order. Host
    /// memory holds no copy of them. Empty on a prefill stage.
    pub from_file: Vec<usize>,
    /// Source of the stage's weights.
    pub weights: Box<dyn WeightSource>,
}

impl StageSpec {
    pub(crate) fn arenas(&self) -> Arenas {
        Arenas::at_most(self.streamed.len(), self.arenas.unwrap_or(0))
    }

    /// Returns the streamed segments.
    pub(crate) fn streamed(&self) -> Streamed<'_> {
        Streamed { segments: &self.streamed, arenas: self.arenas(), from_file: &self.from_file }
    }
}

/// Options of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// Routes of each edge between neighbouring stages. There is one edge fewer than stages.
    pub routes: Vec<Routes>,
    /// Cores of the NUMA node on which the rings of each edge belong. An edge without an entry, or with an
    /// empty one, has rings on any node.
    pub ring_cores: Vec<Vec<usize>>,
    /// Maximum length of a sequence, in tokens.
    pub context: u32,
    /// Number of blocks in the KV cache of every stage. Each holds [`BLOCK_TOKENS`] positions.
    pub kv_blocks: u32,
    /// Prefill chunks: the maximum number of rows of a micro-batch that has prompt rows.
    pub chunks: Chunks,
    /// Minimum number of tokens of a prompt that the prefill stage computes. Unused without a prefill stage.
    pub prefill_from: u32,
    /// Number of decode groups.
    pub decode_groups: u32,
    /// Maximum number of micro-batches in flight.
    pub credits: u32,
    /// Number of slots of each stage.
    pub slots: u32,
    /// Maximum number of spans in a trace. The value 0 disables the trace.
    pub trace_spans: usize,
    /// Whether each stage verifies the checksum of the activations that it receives before it computes. If it
    /// is wrong, the activations are sent again over the next route of the edge.
    pub verify_transfers: bool,
    /// Time after which a copy that does not complete ends the run. `None` disables the limit.
    /// Time in which the copy waits for a computation or for a read of streamed weights does not count.
    pub stall_timeout: Option<Duration>,
}

/// Default of [`PipelineOptions::stall_timeout`].
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

impl PipelineOptions {
    /// Creates options with host-staged routes. The maximum number of micro-batches in flight is the number
    /// of stages plus one.
    pub fn new(stages: usize, context: u32, kv_blocks: u32, chunk_rows: u32) -> Self {
        let credits = stages as u32 + 1;
        Self {
            routes: vec![Route::HOST_STAGED.into(); stages.saturating_sub(1)],
            ring_cores: Vec::new(),
            context,
            kv_blocks,
            chunks: Chunks::fixed(chunk_rows),
            prefill_from: 1,
            decode_groups: stages.max(1) as u32,
            credits,
            slots: Self::slots(credits),
            trace_spans: 0,
            verify_transfers: false,
            stall_timeout: Some(STALL_TIMEOUT),
        }
    }

    /// Returns the smallest number of slots per stage that causes no delay, but no more than `credits`. One
    /// micro-batch computes, one is uploaded, and one is downloaded. A fourth has left the device, but the
    /// host does not know this yet.
    pub fn slots(credits: u32) -> u32 {
        credits.min(4)
    }
}

/// Progress of loading the weights of all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Index of the stage for which bytes were submitted last.
    pub stage: u32,
    /// Bytes of weights submitted to the devices so far.
    pub done_bytes: u64,
    /// Total bytes of the weights of all stages.
    pub total_bytes: u64,
}

/// Values that are derived from the stages and the options.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) run: RunShape,
    pub(crate) weight_bytes: u64,
    pub(crate) logit_row_bytes: u64,
    /// Size in bytes of the host memory for the logits of one micro-batch.
    pub(crate) logits_part_bytes: u64,
    /// Maximum number of cache blocks in a place of a passage.
    pub(crate) passing_blocks: u64,
}

impl Layout {
    pub(crate) fn new(pipeline: &PipelineSpec, options: &PipelineOptions) -> Result<Self> {
        let PipelineSpec { devices, stages, prefill } = pipeline;
        let spec = |what: String| Error::Spec { what };
        let compiled = || pipeline.all().map(|s| &s.compiled);
        let Some(last) = stages.last().map(|s| &s.compiled) else {
            return Err(spec("the pipeline has no stages".into()));
        };
        if options.routes.len() != stages.len() - 1 {
            return Err(spec(format!(
                "routes for {} edges between {} stages",
                options.routes.len(),
                stages.len()
            )));
        }
        if options.slots == 0 {
            return Err(spec("the stages have no slots".into()));
        }
        for (edge, routes) in options.routes.iter().enumerate() {
            routes.check().map_err(|error| spec(format!("routes of edge {edge}: {error}")))?;
        }
        for (index, device) in devices.iter().enumerate() {
            let id = device.id();
            if devices[..index].iter().any(|other| other.id() == id) {
                return Err(spec(format!("{id} is listed twice")));
            }
            if pipeline.all().all(|stage| stage.device != index) {
                return Err(spec(format!("{id} has no stage")));
            }
        }
        if let Some(pair) = stages.windows(2).find(|pair| pair[0].device == pair[1].device) {
            let at = pair[1].compiled.segments.start;
            return Err(spec(format!(
                "the stages on both sides of segment {at} are on one device; merge them"
            )));
        }
        for (index, stage) in stages.iter().enumerate() {
            if stage.device >= devices.len() {
                return Err(spec(format!(
                    "stage {index} is on device {} of {}",
                    stage.device,
                    devices.len()
                )));
            }
            let rows = |compiled: &CompiledStage| (compiled.row_bytes, compiled.crossing_row_bytes);
            let is_alike = rows(&stage.compiled) == rows(last)
                && stage.compiled.kv_ring == last.kv_ring
                && stage.compiled.rope_lengths == last.rope_lengths;
            if stage.compiled.programs.is_empty() || !is_alike {
                return Err(spec(format!("stage {index} was not compiled for this pipeline")));
            }
            check_streamed(index, stage)?;
            if stage.compiled.segments.start
                != if index == 0 { 0 } else { stages[index - 1].compiled.segments.end }
            {
                return Err(spec(format!("stage {index} does not begin at the end of the previous stage")));
            }
        }
        prefill.iter().try_for_each(|prefill| check_prefill(prefill, pipeline))?;
        let StageResult::Logits { vocabulary: vocabulary @ 1.. } = last.result else {
            return Err(spec("the last stage returns no logits".into()));
        };
        let logit_row_bytes = last.result.row_bytes();
        let shapes = || compiled().filter_map(|c| c.programs.last()).map(|p| p.params);
        let smallest =
            |of: fn(&ragtag_kernels::params::ParamsShape) -> u32| shapes().map(|s| of(&s)).min().unwrap_or(0);
        let table_positions = u64::from(smallest(|s| s.table_blocks)) * BLOCK_TOKENS as u64;
        if u64::from(options.context) > table_positions {
            let context = options.context;
            return Err(spec(format!(
                "the context is {context}, but block tables hold only {table_positions} positions"
            )));
        }
        let logit_rows = [Some(last), prefill.as_ref().map(|stage| &stage.compiled)];
        let logit_rows = logit_rows.into_iter().flatten().map(CompiledStage::max_logit_rows).max();
        let logits_part_bytes = u64::from(logit_rows.unwrap_or(0)) * logit_row_bytes;
        let run = RunShape {
            stages: stages.len() as u32,
            decode_groups: options.decode_groups,
            credits: options.credits,
            context: options.context,
            vocabulary,
            chunks: options.chunks.clone(),
            max_rows: smallest(|s| s.rows),
            max_logit_rows: smallest(|s| s.logit_rows),
            max_sequences: smallest(|s| s.sequences),
            kv_blocks: options.kv_blocks,
            kv_ring: last.kv_ring,
            prefill_from: prefill.as_ref().map(|_| options.prefill_from),
            recompute_at: last.rope_lengths.as_ref().and_then(RopeLengths::recompute_at),
        };
        let passing_blocks = passing_blocks(run.max_rows, run.max_sequences);
        Ok(Self {
            run,
            weight_bytes: weight_bytes(pipeline),
            logit_row_bytes,
            logits_part_bytes,
            passing_blocks,
        })
    }
}

/// Returns the size of all weights that the stages load before they start. The prefill stage loads those that no other stage of
/// its device has, and that it does not stream from another device.
fn weight_bytes(pipeline: &PipelineSpec) -> u64 {
    let weights = |stage: &StageSpec| stage.compiled.weights.iter().map(|w| w.bytes()).sum::<u64>();
    let of_stages: u64 = pipeline.stages.iter().map(weights).sum();
    let of_prefill = pipeline.prefill.iter().flat_map(|prefill| {
        let beside = pipeline.stages.iter().filter(|stage| stage.device == prefill.device);
        let held: Vec<_> = beside.flat_map(|stage| &stage.compiled.weights).collect();
        prefill.compiled.weights.iter().filter(move |weight| held.iter().all(|other| !other.is_same(weight)))
    });
    let shared = shared_weights(pipeline);
    let shared =
        shared.iter().map(|shared| pipeline.stages[shared.stage].compiled.weights[shared.weight].bytes());
    let of_file = pipeline.stages.iter().flat_map(|stage| {
        let streaming = Streaming::new(&stage.compiled, stage.streamed(), |_| false);
        let weights = streaming.file_parts().flat_map(|(_, part)| part.weights.clone()).collect::<Vec<_>>();
        weights.into_iter().map(move |(weight, _)| stage.compiled.weights[weight].bytes())
    });
    of_stages + of_prefill.map(|weight| weight.bytes()).sum::<u64>()
        - shared.sum::<u64>()
        - of_file.sum::<u64>()
}

/// Checks the prefill stage.
fn check_prefill(prefill: &StageSpec, pipeline: &PipelineSpec) -> Result<()> {
    let PipelineSpec { devices, stages, .. } = pipeline;
    let wrong = |what: &str| Err(Error::Spec { what: format!("the prefill stage {what}") });
    let StageSpec { device, compiled, .. } = prefill;
    if *device >= devices.len() {
        return wrong(&format!("is on device {device} of {}", devices.len()));
    }
    let last = stages.last().map(|last| &last.compiled);
    let rows = |compiled: &CompiledStage| (compiled.row_bytes, compiled.result);
    let is_whole =
        last.is_some_and(|last| compiled.segments == (0..last.segments.end) && rows(compiled) == rows(last));
    if compiled.programs.is_empty() || !is_whole {
        return wrong("was not compiled for all segments of this pipeline");
    }
    check_streamed(stages.len(), prefill)?;
    if !prefill.from_file.is_empty() {
        return wrong("cannot read weights from the model's file");
    }
    if stages.iter().all(|stage| stage.device == *device) {
        return wrong("has no other device to pass keys and values to");
    }
    let same_blocks = |stage: &StageSpec| same_kv_blocks(compiled, &stage.compiled);
    if !stages.iter().all(same_blocks) {
        return wrong("has a KV cache of another layout");
    }
    Ok(())
}

/// Checks the streamed segments of the stage at `index`.
fn check_streamed(index: usize, stage: &StageSpec) -> Result<()> {
    let StageSpec { streamed, arenas, from_file, compiled, .. } = stage;
    let has_all = streamed.iter().all(|segment| compiled.segments.contains(segment));
    let is_sorted = streamed.windows(2).all(|pair| pair[0] < pair[1]);
    if !has_all || !is_sorted || (1..FEWEST).contains(&streamed.len()) {
        return Err(Error::Spec { what: format!("stage {index} cannot stream the segments {streamed:?}") });
    }
    let wrong = arenas.and_then(|count| wrong_arenas(streamed.len(), count));
    match wrong.or_else(|| wrong_from_file(streamed, from_file)) {
        Some(what) => Err(Error::Spec { what: format!("stage {index}: {what}") }),
        None => Ok(()),
    }
}
