//! The engine: a plan carried out. Devices are opened, segments compiled, weights loaded, actors started.

use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::session::Session;
use crate::trace::Trace;
use ragtag_graph::{CompiledStage, Lowering, WeightBuffer, WeightChunk, Weights};
use ragtag_hal::{Adapter, Device};
use ragtag_planner::plan::Plan;
use ragtag_scheduler::{Pipeline, PipelineOptions, PipelineStats, StageReport, StageSpec, WeightSource};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Most spans that a trace keeps.
const TRACE_SPANS: usize = 1 << 20;

/// Told how many bytes of weights are on the devices, and how many there are in all.
pub type Progress = Box<dyn FnMut(u64, u64) + Send>;

/// How an engine runs, beyond its plan.
#[derive(Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Record what every device queue does.
    pub trace: bool,
    /// Logits of every row may be asked for ([`Session::logits`]); needs a plan made with
    /// [`Planner::all_logits`](crate::Planner::all_logits).
    pub all_logits: bool,
    /// Told how far loading has come.
    pub progress: Option<Progress>,
}

/// The same for an engine that may be started more than once.
pub(crate) struct Options {
    trace: bool,
    all_logits: bool,
    progress: Arc<Mutex<Option<Progress>>>,
}

impl From<EngineOptions> for Options {
    fn from(EngineOptions { trace, all_logits, progress }: EngineOptions) -> Self {
        Self { trace, all_logits, progress: Arc::new(Mutex::new(progress)) }
    }
}

/// One stage as it runs.
#[derive(Clone, Debug)]
pub struct StageInfo {
    /// The device.
    pub adapter: Adapter,
    /// Its segments.
    pub segments: Range<usize>,
    /// The kernel variants that its programs use.
    pub kernels: Vec<String>,
}

/// A loaded pipeline. It stops when the engine, its sessions and their streams are dropped.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    plan: Plan,
    stages: Vec<StageInfo>,
    pipeline: Arc<Pipeline>,
}

impl Engine {
    /// Opens the plan's devices, compiles and loads its stages, and starts them: this plan or none.
    /// [`Engine::start`] replans where a device refuses memory or does not open.
    ///
    /// # Errors
    /// [`Error::PlanFile`]-like mistakes are found by the planner; here [`Error::Compile`], [`Error::Device`] and
    /// [`Error::Run`] say what a device could not do.
    pub fn start_exact(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::start_told(model, devices, plan, &options.into())
    }

    pub(crate) fn start_told(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        let lowering = lowering(plan, options.all_logits);
        let labels: Vec<String> = plan.stages.iter().map(|s| s.device.clone()).collect();
        let graph = model.graph().with_granularity(plan.model.granularity);
        let (mut specs, mut stages) = (Vec::new(), Vec::new());
        for (stage, (adapter, device)) in plan.stages.iter().zip(devices.open_stages(&labels)?) {
            let segments = stage.segments.range();
            let compiled = ragtag_graph::compile(&graph, segments.clone(), &lowering, &adapter.caps)
                .map_err(|cause| Error::Compile { device: adapter.label(), cause })?;
            stages.push(StageInfo { adapter, segments, kernels: compiled.variants.clone() });
            specs.push(stage_spec(model, compiled, Box::new(device)));
        }
        let mut run = PipelineOptions::new(specs.len(), plan.context, lowering.cache_blocks(), plan.chunk);
        run.chunks = plan.chunks();
        run.routes = plan.routes();
        run.decode_groups = plan.decode_groups;
        run.credits = plan.credits;
        run.slots = plan.slots;
        run.trace_spans = if options.trace { TRACE_SPANS } else { 0 };
        let progress = Arc::clone(&options.progress);
        let pipeline = Pipeline::start(specs, &run, move |loaded| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(tell) = progress.as_mut() {
                tell(loaded.done_bytes, loaded.total_bytes);
            }
        })?;
        Ok(Self { model: model.clone(), plan: plan.clone(), stages, pipeline: Arc::new(pipeline) })
    }

    /// A session: many may run at the same time.
    pub fn session(&self) -> Session {
        Session::new(self.model.clone(), Arc::clone(&self.pipeline))
    }

    /// The plan that it carries out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What runs where.
    pub fn stages(&self) -> &[StageInfo] {
        &self.stages
    }

    /// What the pipeline has done so far: stages, edges, the return of tokens.
    pub fn stats(&self) -> PipelineStats {
        self.pipeline.stats()
    }

    /// What each stage has done so far, as of some micro-batches ago.
    pub fn stage_reports(&self) -> Vec<StageReport> {
        self.pipeline.stats().stages
    }

    /// What every queue has done so far; empty unless [`EngineOptions::trace`] was set.
    pub fn trace(&self) -> Trace {
        Trace::new(self.pipeline.trace(), &self.stages)
    }

    /// Ends the pipeline and returns its trace. Sessions that are still alive keep it going until they are dropped.
    /// A pipeline that failed has told its sequences.
    pub fn shutdown(self) -> Trace {
        let stages = self.stages;
        let spans = match Arc::try_unwrap(self.pipeline) {
            Ok(pipeline) => pipeline.shutdown().trace,
            Err(shared) => shared.trace(),
        };
        Trace::new(spans, &stages)
    }
}

/// How a plan has the model lowered.
pub(crate) fn lowering(plan: &Plan, all_logits: bool) -> Lowering {
    Lowering {
        activations: plan.activations,
        kv: plan.kv,
        context: plan.context,
        sequences: plan.sequences,
        chunk: plan.chunk,
        logit_rows: if all_logits { plan.chunk } else { plan.logit_rows() },
        boundary: plan.boundary,
    }
}

fn stage_spec(model: &Model, compiled: CompiledStage, device: Box<dyn Device>) -> StageSpec {
    let weights = FileWeights::new(model, &compiled);
    StageSpec { device, compiled, weights: Box::new(weights) }
}

/// Weights that come out of the model's files, packed for the device on the way.
pub(crate) struct FileWeights {
    weights: Arc<Weights>,
    buffers: Vec<WeightBuffer>,
}

impl FileWeights {
    /// The weights of a stage of a model.
    pub(crate) fn new(model: &Model, compiled: &CompiledStage) -> Self {
        Self { weights: Arc::clone(model.graph().weights()), buffers: compiled.weights.clone() }
    }
}

impl WeightSource for FileWeights {
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk> {
        self.buffers[weight].chunks(max_bytes)
    }

    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.buffers[weight].fill(&self.weights, chunk, out)?)
    }
}
