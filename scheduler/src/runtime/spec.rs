//! Inputs of a pipeline, and their validation.

use crate::actor::WeightSource;
use crate::core::RunShape;
use crate::error::{Error, Result};
use ragtag_graph::CompiledStage;
use ragtag_hal::Device;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_planner::Chunks;
use ragtag_planner::streaming::FEWEST;
use ragtag_transfer::{Route, Routes};
use std::time::Duration;

/// Devices and stages of a pipeline.
pub struct PipelineSpec {
    /// Devices, each wrapped in [`ragtag_hal::Checked`]. Nothing has been submitted to them yet, and each
    /// runs at least one stage.
    pub devices: Vec<Box<dyn Device>>,
    /// Stages in pipeline order.
    pub stages: Vec<StageSpec>,
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
    /// Source of the stage's weights.
    pub weights: Box<dyn WeightSource>,
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
    /// Time in which the copy waits for a computation does not count.
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
}

impl Layout {
    pub(crate) fn new(pipeline: &PipelineSpec, options: &PipelineOptions) -> Result<Self> {
        let PipelineSpec { devices, stages } = pipeline;
        let spec = |what: String| Error::Spec { what };
        let compiled = || stages.iter().map(|s| &s.compiled);
        let Some(last) = compiled().next_back() else {
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
            if stages.iter().all(|stage| stage.device != index) {
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
            if stage.compiled.programs.is_empty() || rows(&stage.compiled) != rows(last) {
                return Err(spec(format!("stage {index} was not compiled for this pipeline")));
            }
            check_streamed(index, stage)?;
            if stage.compiled.segments.start
                != if index == 0 { 0 } else { stages[index - 1].compiled.segments.end }
            {
                return Err(spec(format!("stage {index} does not begin at the end of the previous stage")));
            }
        }
        if last.logit_row_bytes == 0 || !last.logit_row_bytes.is_multiple_of(4) {
            return Err(spec(format!("the last stage has logits of {} bytes", last.logit_row_bytes)));
        }
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
        let logits_part_bytes = u64::from(last.max_logit_rows()) * last.logit_row_bytes;
        let run = RunShape {
            stages: stages.len() as u32,
            decode_groups: options.decode_groups,
            credits: options.credits,
            context: options.context,
            vocabulary: u32::try_from(last.logit_row_bytes / 4).unwrap_or(u32::MAX),
            chunks: options.chunks.clone(),
            max_rows: smallest(|s| s.rows),
            max_logit_rows: smallest(|s| s.logit_rows),
            max_sequences: smallest(|s| s.sequences),
            kv_blocks: options.kv_blocks,
        };
        let weight_bytes = compiled().flat_map(|c| &c.weights).map(|w| w.bytes()).sum();
        Ok(Self { run, weight_bytes, logit_row_bytes: last.logit_row_bytes, logits_part_bytes })
    }
}

/// Checks the streamed segments of the stage at `index`.
fn check_streamed(index: usize, stage: &StageSpec) -> Result<()> {
    let StageSpec { streamed, compiled, .. } = stage;
    let has_all = streamed.iter().all(|segment| compiled.segments.contains(segment));
    let is_sorted = streamed.windows(2).all(|pair| pair[0] < pair[1]);
    if has_all && is_sorted && (streamed.is_empty() || streamed.len() >= FEWEST) {
        return Ok(());
    }
    Err(Error::Spec { what: format!("stage {index} cannot stream the segments {streamed:?}") })
}
