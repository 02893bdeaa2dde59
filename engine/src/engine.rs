//! The engine executes a plan. It opens devices, compiles segments, loads weights and starts the actors.

use crate::calibrate::Topology;
use crate::devices::{Devices, StageDevices};
use crate::error::{Error, Result};
use crate::held::HeldPipeline;
use crate::model::Model;
use crate::session::Session;
use crate::stage::{FileWeights, StageInfo, compute_timeout, longest_computation, lowering};
use crate::trace::Trace;
use crate::trust;
use ragtag_hal::Device;
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::core::Limits;
use ragtag_scheduler::{
    Pipeline, PipelineOptions, PipelineSpec, PipelineStats, STALL_TIMEOUT, StageReport, StageSpec,
};
use ragtag_transfer::Routes;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of spans that an engine records in its trace.
const TRACE_SPANS: usize = 1 << 20;

/// Callback for loading progress. It receives the number of weight bytes loaded so far and the total number
/// to load.
pub type Progress = Box<dyn FnMut(u64, u64) + Send>;

/// Options for starting an engine, in addition to its plan.
#[derive(Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Whether to record a trace of the work on every device queue.
    pub trace: bool,
    /// Whether to allow [`Session::logits`] and [`Session::embed`], which need the logits or the hidden rows of
    /// every row. The plan must have been made with [`Planner::all_logits`](crate::Planner::all_logits).
    pub all_logits: bool,
    /// Callback for loading progress.
    pub progress: Option<Progress>,
    /// Whether each stage verifies the activations that it receives, with checksums. Activations with wrong
    /// bytes are sent again, over the next route of the edge if it has one. Wrong keys and values of a
    /// prefill stage end the run. Plans count the memory for the checksums if
    /// [`Planner::verify_transfers`](crate::Planner::verify_transfers) is set.
    pub verify_transfers: bool,
    /// Time after which a copy that does not complete ends the run. `None` selects 60 seconds.
    /// Zero disables the limit. Time in which a copy waits for a computation does not count.
    pub stall_timeout: Option<Duration>,
    /// Limits of the requests that wait. [`Session::try_generate`](crate::Session::try_generate) refuses a request beyond them.
    pub limits: Limits,
    /// Time after which a computation that does not complete ends the run. It starts when the device has completed
    /// the previous computation. `None` selects 20 times the predicted time of the stage's longest computation, at
    /// least 10 seconds and `stall_timeout`, and 10 times these on a CPU or an emulated device. Zero disables the limit.
    /// So does `None` if `stall_timeout` is zero.
    pub compute_timeout: Option<Duration>,
    /// Whether to skip the self-test of kernels that are new on a device. By default, the engine runs each of
    /// them on small inputs before the device computes with it, and compares the results with a reference. The
    /// outcome is cached. CPU devices are not tested.
    pub no_self_test: bool,
    /// Cache folder for the outcomes of self-tests. The default is that of
    /// [`CalibrationOptions::folder`](crate::CalibrationOptions::folder).
    pub cache_folder: Option<PathBuf>,
}

/// Engine options that remain usable after a failed start. Starting an engine only borrows these options,
/// whereas it would consume [`EngineOptions`].
pub(crate) struct Options {
    /// The options without the callback. A `stall_timeout` of `None` disables the limit.
    given: EngineOptions,
    progress: Arc<Mutex<Option<Progress>>>,
}

impl From<EngineOptions> for Options {
    fn from(mut given: EngineOptions) -> Self {
        let progress = Arc::new(Mutex::new(given.progress.take()));
        let stall_timeout = given.stall_timeout.unwrap_or(STALL_TIMEOUT);
        given.stall_timeout = Some(stall_timeout).filter(|limit| !limit.is_zero());
        Self { given, progress }
    }
}

/// Result and cost of verified transfers since the engine started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VerifiedTransfers {
    /// Transfers that arrived with the right bytes.
    pub transfers: u64,
    /// Arrivals with wrong bytes, after which the transfer was sent again.
    pub wrong: u64,
    /// Time in microseconds from the arrival of activations until the comparison of their checksums, summed
    /// over all transfers.
    pub waited_us: f64,
    /// Share of `waited_us` in the time since the engine started.
    pub share: f64,
}

/// Result of [`Engine::shutdown`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Shutdown {
    /// The trace of every queue. It is empty unless [`EngineOptions::trace`] was set.
    pub trace: Trace,
    /// Labels of the devices that were left behind, because they did not finish their work.
    pub left: Vec<String>,
}

/// A running pipeline with its model and plan. The pipeline stops when the engine, all its sessions and all
/// their streams have been dropped.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    plan: Arc<Plan>,
    stages: Vec<StageInfo>,
    pipeline: Arc<HeldPipeline>,
    /// Time at which the stages were loaded, if transfers are verified.
    verified_since: Option<Instant>,
}

impl Engine {
    /// Opens the plan's devices, then compiles, loads and starts the stages. Unlike [`Engine::start`], never
    /// replans if a device is out of memory or cannot be opened.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if a device of the plan is not selected, [`Error::Device`] if it cannot be
    /// opened, [`Error::Compile`] if it cannot run its segments, [`Error::Untrusted`] if a kernel fails its
    /// self-test, and [`Error::Run`] if loading fails. Does not validate the plan. Plans from a [`Planner`](crate::Planner) are valid.
    pub fn start_exact(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::start_with(model, devices, plan, &options.into())
    }

    pub(crate) fn start_with(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: &Options,
    ) -> Result<Self> {
        let Options { given: options, progress } = options;
        let lowering = lowering(plan, options.all_logits);
        let label = |stage: &PlanStage| stage.device.clone();
        let labels: Vec<String> = plan.stages.iter().map(label).collect();
        let prefill = plan.prefill_stage.as_ref();
        let graph = model.graph().with_granularity(plan.model.granularity);
        let prefill_label = prefill.map(|prefill| label(&prefill.stage));
        let all: Vec<&PlanStage> = plan.all_stages().collect();
        let compile = |stage: &&PlanStage| {
            let adapter = devices.selected_adapter(&stage.device)?.clone();
            let compiled = ragtag_graph::compile(&graph, stage.segments.range(), &lowering, &adapter.caps);
            let compiled = compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })?;
            Ok((adapter, compiled))
        };
        let compiled = all.iter().map(compile).collect::<Result<Vec<_>>>()?;
        if !options.no_self_test {
            trust::check(devices, &compiled, options.cache_folder.clone())?;
        }
        let claim = devices.claim(plan);
        let StageDevices { devices: opened, hosts } = devices.open_stages(&labels, prefill_label)?;
        let topology = Topology::new("/");
        let ends = hosts[..labels.len()].windows(2).map(|pair| [&opened[pair[0]].0, &opened[pair[1]].0]);
        let ring_cores = ends.map(|ends| topology.ring_cores(ends)).collect();
        let (mut specs, mut stages) = (Vec::new(), Vec::new());
        for ((stage, device), (adapter, compiled)) in all.into_iter().zip(hosts).zip(compiled) {
            let segments = stage.segments.range();
            let longest = longest_computation(plan, stage);
            let timeouts = (options.compute_timeout, options.stall_timeout);
            let compute_timeout = compute_timeout(timeouts, longest, adapter.kind);
            stages.push(StageInfo { adapter, segments, kernels: compiled.variants.clone() });
            let weights = Box::new(FileWeights::new(model, &compiled));
            let streamed = stage.streamed.iter().map(|&segment| segment as usize).collect();
            let arenas = stage.arenas.map(|count| count as usize);
            let from_file = stage.from_file.iter().map(|&segment| segment as usize).collect();
            let resident = StageSpec::new(device, compiled, weights);
            specs.push(StageSpec { streamed, arenas, from_file, longest, compute_timeout, ..resident });
        }
        let prefill = prefill.and_then(|prefill| Some((prefill.from_tokens, specs.pop()?)));
        let mut run = PipelineOptions::new(specs.len(), plan.context, lowering.cache_blocks(), plan.chunk);
        run.kv_use = plan.kv_use;
        run.chunks = plan.chunks();
        run.prefill_from = prefill.as_ref().map_or(1, |(from_tokens, _)| *from_tokens);
        run.routes = plan.routes();
        run.ring_cores = ring_cores;
        run.decode_groups = plan.decode_groups;
        run.credits = plan.credits;
        run.slots = plan.slots;
        run.trace_spans = if options.trace { TRACE_SPANS } else { 0 };
        (run.verify_transfers, run.stall_timeout) = (options.verify_transfers, options.stall_timeout);
        run.limits = options.limits;
        let progress = Arc::clone(progress);
        let devices = opened.into_iter().map(|(_, device)| Box::new(device) as Box<dyn Device>).collect();
        let spec = PipelineSpec { devices, stages: specs, prefill: prefill.map(|(_, stage)| stage) };
        let pipeline = Pipeline::start(spec, &run, move |loaded| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(report) = progress.as_mut() {
                report(loaded.done_bytes, loaded.total_bytes);
            }
        })?;
        claim.allocated();
        let pipeline = Arc::new(HeldPipeline { pipeline, _claim: claim });
        let (model, plan) = (model.clone(), Arc::new(plan.clone()));
        let verified_since = options.verify_transfers.then(Instant::now);
        Ok(Self { model, plan, stages, pipeline, verified_since })
    }

    /// Creates a session. An engine can have any number of sessions at the same time.
    pub fn session(&self) -> Session {
        Session::new(self.model.clone(), Arc::clone(&self.plan), Arc::clone(&self.pipeline))
    }

    /// Returns the plan that the engine executes.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the stages in pipeline order. If the plan has a prefill stage, it is the last.
    pub fn stages(&self) -> &[StageInfo] {
        &self.stages
    }

    /// Returns the statistics of all stages, all edges and the token return since the engine started.
    pub fn stats(&self) -> PipelineStats {
        self.pipeline.stats()
    }

    /// Returns the statistics of each stage since the engine started. They may not yet include the last few
    /// micro-batches.
    pub fn stage_reports(&self) -> Vec<StageReport> {
        self.pipeline.stats().stages
    }

    /// Returns the routes that each edge uses. They are those of the plan, without the routes that a device
    /// could not set up, and without the routes that were replaced because wrong bytes arrived over them.
    pub fn routes(&self) -> Vec<Routes> {
        self.pipeline.stats().routes
    }

    /// Returns the result and the cost of verified transfers since the engine started. They may not yet
    /// include the last few micro-batches. Returns `None` unless [`EngineOptions::verify_transfers`] was set.
    pub fn verified_transfers(&self) -> Option<VerifiedTransfers> {
        let elapsed_us = self.verified_since?.elapsed().as_secs_f64() * 1e6;
        let reports = self.stage_reports();
        let counts = || reports.iter().map(|report| report.counts.verification);
        let waited_us = counts().map(|counts| counts.waited_ns as f64 / 1e3).sum();
        Some(VerifiedTransfers {
            transfers: counts().map(|counts| counts.transfers).sum(),
            wrong: counts().map(|counts| counts.wrong).sum(),
            waited_us,
            share: waited_us / elapsed_us.max(1.0),
        })
    }

    /// Returns the trace of every queue since the engine started. The trace is empty unless
    /// [`EngineOptions::trace`] was set.
    pub fn trace(&self) -> Trace {
        Trace::new(self.pipeline.trace(), &self.stages)
    }

    /// Stops the pipeline and returns its trace. If sessions or streams still exist, the pipeline runs until
    /// they are dropped. Does not return an error if the pipeline has failed. The streams of its sequences
    /// return this error.
    ///
    /// Waits for work in flight, but not for a device that makes no progress for 0.8 s and for twice the predicted time.
    /// Such a device keeps its memory until it has finished its work.
    pub fn shutdown(self) -> Shutdown {
        let (spans, left) = match Arc::try_unwrap(self.pipeline) {
            Ok(held) => {
                let report = held.pipeline.shutdown();
                (report.trace, report.left)
            }
            Err(shared) => (shared.trace(), Vec::new()),
        };
        Shutdown { trace: Trace::new(spans, &self.stages), left }
    }
}
