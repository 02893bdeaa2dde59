//! A pipeline that is ready to load: the options of an engine, the open devices, and the compiled stages of a plan.

use crate::calibrate::Topology;
use crate::devices::{Devices, StageDevices};
use crate::engine::{EngineOptions, Progress};
use crate::error::{Error, Result};
use crate::ledger::Claim;
use crate::model::Model;
use crate::recovery::OnRecovery;
use crate::stage::{FileWeights, StageInfo, compute_timeout, longest_computation, lowering};
use crate::trust;
use ragtag_graph::CompiledStage;
use ragtag_hal::{Adapter, Device};
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::core::Limits;
use ragtag_scheduler::{LoadProgress, PipelineOptions, PipelineSpec, Recovery, STALL_TIMEOUT, StageSpec};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of spans that an engine records in its trace.
const TRACE_SPANS: usize = 1 << 20;

/// Engine options that remain usable after a start. Starting an engine only borrows these options, whereas it would
/// consume [`EngineOptions`].
#[derive(Clone)]
pub(crate) struct Options {
    trace: bool,
    pub(crate) all_logits: bool,
    pub(crate) verify_transfers: bool,
    /// `None` disables the limit.
    pub(crate) stall_timeout: Option<Duration>,
    limits: Limits,
    pub(crate) compute_timeout: Option<Duration>,
    pub(crate) no_self_test: bool,
    cache_folder: Option<PathBuf>,
    pub(crate) max_recoveries: u32,
    pub(crate) log_events: Option<PathBuf>,
    progress: Arc<Mutex<Option<Progress>>>,
    pub(crate) on_recovery: Arc<Mutex<Option<OnRecovery>>>,
}

impl From<EngineOptions> for Options {
    fn from(given: EngineOptions) -> Self {
        let EngineOptions { trace, all_logits, progress, verify_transfers, stall_timeout, limits, .. } =
            given;
        let stall_timeout = stall_timeout.unwrap_or(STALL_TIMEOUT);
        Self {
            trace,
            all_logits,
            verify_transfers,
            stall_timeout: Some(stall_timeout).filter(|limit| !limit.is_zero()),
            limits,
            compute_timeout: given.compute_timeout,
            no_self_test: given.no_self_test,
            cache_folder: given.cache_folder,
            max_recoveries: given.max_recoveries,
            log_events: given.log_events,
            progress: Arc::new(Mutex::new(progress)),
            on_recovery: Arc::new(Mutex::new(given.on_recovery)),
        }
    }
}

impl Options {
    /// Returns a function that reports the progress of loading to the caller's callback.
    pub(crate) fn loading(&self) -> impl Fn(LoadProgress) + Send + Sync + 'static {
        let progress = Arc::clone(&self.progress);
        move |loaded| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(report) = progress.as_mut() {
                report(loaded.done_bytes, loaded.total_bytes);
            }
        }
    }
}

/// The compiled stages of a plan, each with the adapter of its device.
pub(crate) type Compiled = Vec<(Adapter, CompiledStage)>;

/// Compiles the stages of a plan.
pub(crate) fn compile(model: &Model, devices: &Devices, plan: &Plan, options: &Options) -> Result<Compiled> {
    let lowering = lowering(plan, options.all_logits);
    let graph = model.graph().with_granularity(plan.model.granularity);
    let compile = |stage: &PlanStage| {
        let adapter = devices.selected_adapter(&stage.device)?.clone();
        let compiled = ragtag_graph::compile(&graph, stage.segments.range(), &lowering, &adapter.caps);
        let compiled = compiled.map_err(|cause| Error::Compile { device: adapter.label(), cause })?;
        Ok((adapter, compiled))
    };
    plan.all_stages().map(compile).collect()
}

/// Open devices and compiled stages of a plan, with a claim on their memory.
pub(crate) struct Prepared {
    pub(crate) spec: PipelineSpec,
    pub(crate) run: PipelineOptions,
    pub(crate) stages: Vec<StageInfo>,
    pub(crate) claim: Claim,
}

impl Prepared {
    /// Compiles the stages of a plan, tests kernels that are new, and opens the devices.
    pub(crate) fn new(model: &Model, devices: &Devices, plan: &Plan, options: &Options) -> Result<Self> {
        Self::with(model, devices, plan, compile(model, devices, plan, options)?, options)
    }

    /// Tests kernels of the compiled stages that are new, and opens the devices.
    pub(crate) fn with(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        compiled: Compiled,
        options: &Options,
    ) -> Result<Self> {
        let all: Vec<&PlanStage> = plan.all_stages().collect();
        let labels: Vec<String> = plan.stages.iter().map(|stage| stage.device.clone()).collect();
        let own: Vec<String> =
            labels.iter().filter(|label| devices.hosts.adapter(label).is_none()).cloned().collect();
        let own_devices = own.iter().collect::<BTreeSet<_>>().len();
        // The other hosts load while this one compiles and loads.
        let adapters: Vec<_> = compiled.iter().map(|(adapter, _)| adapter.clone()).collect();
        let (remote, elsewhere) = devices.hosts.connect(plan, options, (&adapters, own_devices))?;
        if !options.no_self_test {
            let is_own = |adapter: &Adapter| devices.hosts.adapter(&adapter.label()).is_none();
            let own = compiled.iter().filter(|(adapter, _)| is_own(adapter)).cloned().collect::<Vec<_>>();
            trust::check(devices, &own, options.cache_folder.clone())?;
        }
        let claim = devices.claim(plan);
        let prefill = plan.prefill_stage.as_ref();
        let prefill_label = prefill.map(|prefill| prefill.stage.device.clone());
        let StageDevices { devices: opened, hosts } = devices.open_stages(&own, prefill_label)?;
        let topology = Topology::new("/");
        let mut own_hosts = hosts.into_iter();
        let mut hosts: Vec<usize> =
            elsewhere.iter().filter_map(|device| device.or_else(|| own_hosts.next())).collect();
        hosts.extend(own_hosts);
        let ends = labels.windows(2).zip(adapters.windows(2));
        let is_far = |pair: &[String]| pair.iter().any(|label| devices.hosts.adapter(label).is_some());
        let ring_cores = ends.map(|(labels, pair)| match is_far(labels) {
            true => Vec::new(),
            false => topology.ring_cores([&pair[0], &pair[1]]),
        });
        let ring_cores = ring_cores.collect();
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
        let prefill = prefill.and_then(|_| specs.pop());
        let blocks = lowering(plan, options.all_logits).cache_blocks();
        let run = PipelineOptions { ring_cores, ..run_options(plan, specs.len(), blocks, options) };
        let devices = opened.into_iter().map(|(_, device)| Box::new(device) as Box<dyn Device>).collect();
        let spec = PipelineSpec { devices, stages: specs, prefill, events: None, remote };
        Ok(Self { spec, run, stages, claim })
    }
}

impl Prepared {
    /// Returns the same, if the opened devices have the memory that the plan needs beside other engines, and beside the weights
    /// that `recovery` keeps.
    ///
    /// # Errors
    /// [`Error::Usage`] if they do not.
    pub(crate) fn if_it_fits(
        self,
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        recovery: &Recovery,
    ) -> Result<Self> {
        let Self { spec, run, stages, claim } = self;
        // The claim of this plan must not count.
        drop(claim);
        let kept_bytes = |label: &str| {
            let of_label = |stage: &&StageSpec| {
                spec.devices.get(stage.device).is_some_and(|device| device.adapter().label() == label)
            };
            let stages = spec.stages.iter().filter(|_| spec.prefill.is_none()).filter(of_label);
            stages.map(|stage| recovery.kept_bytes(label, &stage.compiled)).sum()
        };
        if !devices.have_room_for(plan, &spec.devices, devices.process_bytes(model), kept_bytes) {
            return Err(Error::Usage("the devices have less free memory than at the start".into()));
        }
        Ok(Self { claim: devices.claim(plan), spec, run, stages })
    }
}

/// Returns the options of a pipeline with `stages` stages that decode and a KV cache of `blocks` blocks.
fn run_options(plan: &Plan, stages: usize, blocks: u32, options: &Options) -> PipelineOptions {
    let mut run = PipelineOptions::new(stages, plan.context, blocks, plan.chunk);
    run.kv_use = plan.kv_use;
    run.chunks = plan.chunks();
    run.prefill_from = plan.prefill_stage.as_ref().map_or(1, |prefill| prefill.from_tokens);
    run.routes = plan.routes();
    run.decode_groups = plan.decode_groups;
    run.credits = plan.credits;
    run.slots = plan.slots;
    run.trace_spans = if options.trace { TRACE_SPANS } else { 0 };
    (run.verify_transfers, run.stall_timeout) = (options.verify_transfers, options.stall_timeout);
    run.limits = options.limits;
    run
}
