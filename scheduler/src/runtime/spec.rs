//! Inputs of a pipeline, and their validation.

use crate::actor::StageSpec;
use crate::actor::shared::same_kv_blocks;
use crate::actor::streaming::Streaming;
use crate::core::{Limits, RunShape};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::remote::Remote;
use crate::results::ResultPlaces;
use crate::runtime::shared_weights::shared_weights;
use ragtag_graph::execution::{Chunks, FEWEST, KvUse, passing_blocks, wrong_arenas, wrong_from_file};
use ragtag_graph::{CompiledStage, RopeLengths};
use ragtag_hal::Device;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_transfer::{Route, Routes};
use std::iter;
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
    /// Receiver of the record of the run. Ignored in stages that replace others, whose run goes on.
    pub events: Option<Box<dyn EventSink>>,
    /// Stages on other hosts. A pipeline with some has no prefill stage.
    pub remote: Remote,
}

impl PipelineSpec {
    /// Returns all stages. The prefill stage is the last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &StageSpec> {
        self.stages.iter().chain(&self.prefill)
    }

    /// Returns the index among [`Remote::stages`] of a stage on another host.
    pub(crate) fn remote_stage(&self, stage: &StageSpec) -> Option<usize> {
        stage.device.checked_sub(self.devices.len())
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
    /// Use of the KV cache.
    pub kv_use: KvUse,
    /// Limits of the requests that wait.
    pub limits: Limits,
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
            kv_use: KvUse::default(),
            limits: Limits::default(),
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
    /// Layout of the host memory for logits.
    pub(crate) results: ResultPlaces,
    /// Maximum number of cache blocks in a place of a passage.
    pub(crate) passing_blocks: u64,
}

impl Layout {
    pub(crate) fn new(pipeline: &PipelineSpec, options: &PipelineOptions) -> Result<Self> {
        let PipelineSpec { devices, stages, prefill, remote, .. } = pipeline;
        let compiled = || pipeline.all().map(|s| &s.compiled);
        let last = stages.last().ok_or_else(|| Error::spec("the pipeline has no stages"))?;
        let last = &last.compiled;
        check_options(stages.len(), options)?;
        check_devices(pipeline)?;
        (0..stages.len())
            .try_for_each(|index| check_stage(index, stages, devices.len() + remote.stages.len()))?;
        prefill.iter().try_for_each(|prefill| check_prefill(prefill, pipeline))?;
        let vocabulary = last.result.vocabulary();
        let vocabulary = vocabulary.ok_or_else(|| Error::spec("the last stage returns no logits"))?;
        let shapes = || compiled().filter_map(|c| c.programs.last()).map(|p| p.params);
        let smallest =
            |of: fn(&ragtag_kernels::params::ParamsShape) -> u32| shapes().map(|s| of(&s)).min().unwrap_or(0);
        let table_positions = u64::from(smallest(|s| s.table_blocks)) * BLOCK_TOKENS as u64;
        if u64::from(options.context) > table_positions {
            let context = options.context;
            return Err(Error::spec(format!(
                "the context is {context}, but block tables hold only {table_positions} positions"
            )));
        }
        let ends = || iter::once(last).chain(prefill.as_ref().map(|stage| &stage.compiled));
        let results = ResultPlaces {
            row_bytes: last.result.row_bytes(),
            rows: ends().map(CompiledStage::max_logit_rows).max().unwrap_or(0),
            has_picks: ends().all(|stage| stage.result.picks_row_bytes() > 0),
        };
        let run = RunShape {
            stages: stages.len() as u32,
            decode_groups: options.decode_groups,
            credits: options.credits,
            context: options.context,
            vocabulary,
            has_picks: results.has_picks,
            chunks: options.chunks.clone(),
            max_rows: smallest(|s| s.rows),
            max_logit_rows: smallest(|s| s.logit_rows),
            max_sequences: smallest(|s| s.sequences),
            kv_blocks: options.kv_blocks,
            kv_use: options.kv_use,
            limits: options.limits,
            kv_ring: last.kv_ring,
            prefill_from: prefill.as_ref().map(|_| options.prefill_from),
            recompute_at: last.rope_lengths.as_ref().and_then(RopeLengths::recompute_at),
        };
        let passing_blocks = passing_blocks(run.max_rows, run.max_sequences);
        Ok(Self { run, weight_bytes: weight_bytes(pipeline), results, passing_blocks })
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

/// Checks the options of a pipeline with `stages` stages.
fn check_options(stages: usize, options: &PipelineOptions) -> Result<()> {
    let edges = options.routes.len();
    if edges != stages - 1 {
        return Err(Error::spec(format!("routes for {edges} edges between {stages} stages")));
    }
    if options.slots == 0 {
        return Err(Error::spec("the stages have no slots"));
    }
    let check = |(edge, routes): (usize, &Routes)| {
        routes.check().map_err(|error| Error::spec(format!("routes of edge {edge}: {error}")))
    };
    options.routes.iter().enumerate().try_for_each(check)
}

/// Checks the devices, and that no two neighbouring stages are on one device.
fn check_devices(pipeline: &PipelineSpec) -> Result<()> {
    let PipelineSpec { devices, stages, .. } = pipeline;
    for (index, device) in devices.iter().enumerate() {
        let id = device.id();
        if devices[..index].iter().any(|other| other.id() == id) {
            return Err(Error::spec(format!("{id} is listed twice")));
        }
        if pipeline.all().all(|stage| stage.device != index) {
            return Err(Error::spec(format!("{id} has no stage")));
        }
    }
    check_remote(pipeline)?;
    let Some(pair) = stages.windows(2).find(|pair| pair[0].device == pair[1].device) else { return Ok(()) };
    let at = pair[1].compiled.segments.start;
    Err(Error::spec(format!("the stages on both sides of segment {at} are on one device; merge them")))
}

/// Checks the stages on other hosts.
fn check_remote(pipeline: &PipelineSpec) -> Result<()> {
    let PipelineSpec { devices, stages, prefill, remote, .. } = pipeline;
    let is_used_once = |index: usize| {
        stages.iter().filter(|stage| stage.device == devices.len() + index).count() == 1
            && remote.stages[index].host < remote.hosts.len()
    };
    if !(0..remote.stages.len()).all(is_used_once) {
        return Err(Error::spec("a device of another host does not have one stage and one host"));
    }
    let streams = stages.iter().any(|stage| !stage.streamed.is_empty());
    if !remote.stages.is_empty() && (prefill.is_some() || streams) {
        return Err(Error::spec("a pipeline over several hosts has no prefill stage and streams no weights"));
    }
    Ok(())
}

/// Checks that a stage was compiled for the pipeline and follows the previous stage.
fn check_stage(index: usize, stages: &[StageSpec], devices: usize) -> Result<()> {
    let (stage, last) = (&stages[index], &stages[stages.len() - 1].compiled);
    if stage.device >= devices {
        return Err(Error::spec(format!("stage {index} is on device {} of {devices}", stage.device)));
    }
    let rows = |compiled: &CompiledStage| (compiled.row_bytes, compiled.crossing_row_bytes);
    let is_alike = rows(&stage.compiled) == rows(last)
        && stage.compiled.kv_ring == last.kv_ring
        && stage.compiled.rope_lengths == last.rope_lengths;
    if stage.compiled.programs.is_empty() || !is_alike {
        return Err(Error::spec(format!("stage {index} was not compiled for this pipeline")));
    }
    check_streamed(index, stage)?;
    let previous_end = index.checked_sub(1).map_or(0, |before| stages[before].compiled.segments.end);
    if stage.compiled.segments.start != previous_end {
        return Err(Error::spec(format!("stage {index} does not begin at the end of the previous stage")));
    }
    Ok(())
}

/// Checks the prefill stage.
fn check_prefill(prefill: &StageSpec, pipeline: &PipelineSpec) -> Result<()> {
    let PipelineSpec { devices, stages, .. } = pipeline;
    let wrong = |what: &str| Err(Error::spec(format!("the prefill stage {what}")));
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
    if compiled.kv_ring.is_some_and(|ring| ring.is_states()) {
        return wrong("cannot pass the states of recurrent layers");
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
        return Err(Error::spec(format!("stage {index} cannot stream the segments {streamed:?}")));
    }
    let wrong = arenas.and_then(|count| wrong_arenas(streamed.len(), count));
    match wrong.or_else(|| wrong_from_file(streamed, from_file)) {
        Some(what) => Err(Error::spec(format!("stage {index}: {what}"))),
        None => Ok(()),
    }
}
