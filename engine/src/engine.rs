//! The engine executes a plan. It opens devices, compiles segments, loads weights and starts the actors.

use crate::devices::Devices;
use crate::error::Result;
use crate::event_log::EventLog;
use crate::held::{Current, HeldPipeline};
use crate::model::Model;
use crate::planner::Planner;
use crate::prepared::{Options, Prepared};
use crate::recovery::{OnRecovery, RecoveryState, Supervised};
use crate::session::Session;
use crate::stage::StageInfo;
use crate::trace::Trace;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::core::Limits;
use ragtag_scheduler::{Pipeline, PipelineStats, StageReport};
use ragtag_transfer::Routes;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
    /// Time after which a copy that does not complete counts as the failure of its device. `None` selects 60 seconds.
    /// Zero disables the limit. Time in which a copy waits for a computation does not count.
    pub stall_timeout: Option<Duration>,
    /// Limits of the requests that wait. [`Session::try_generate`](crate::Session::try_generate) refuses a request beyond them.
    pub limits: Limits,
    /// Time after which a computation that does not complete counts as the failure of its device. It starts when the device has completed
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
    /// Maximum number of recoveries within an hour. After the failure of a device, a recovery plans for the other devices,
    /// loads the stages, and lets all requests go on. With 0, the default, the failure of a device ends the run.
    pub max_recoveries: u32,
    /// File for a log of the events of the run, which [`replay`](crate::replay) replays. It contains the prompts, so only
    /// its owner can read it. It ends at [`EVENT_LOG_BYTES`](crate::EVENT_LOG_BYTES). `None`, the default, logs nothing.
    pub log_events: Option<PathBuf>,
    /// Callback for news about recoveries.
    pub on_recovery: Option<OnRecovery>,
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
    pipeline: Arc<HeldPipeline>,
    verifies_transfers: bool,
}

impl Engine {
    /// Opens the plan's devices, then compiles, loads and starts the stages. Unlike [`Engine::start`], never
    /// replans if a device is out of memory or cannot be opened.
    ///
    /// # Errors
    /// Returns [`Usage`](crate::Error::Usage) if a device of the plan is not selected,
    /// [`Device`](crate::Error::Device) if it cannot be opened, [`Compile`](crate::Error::Compile) if it cannot
    /// run its segments, [`Untrusted`](crate::Error::Untrusted) if a kernel fails its self-test, and
    /// [`Run`](crate::Error::Run) if loading fails. Does not validate the plan. Plans from a
    /// [`Planner`](crate::Planner) are valid.
    pub fn start_exact(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: EngineOptions,
    ) -> Result<Self> {
        let options = options.into();
        let planner = || Planner::like(model, devices, plan, &options);
        Self::start_with(model, devices, plan, &options, planner)
    }

    /// Starts an engine that runs `plan`. After the failure of a device, it plans with `planner`.
    pub(crate) fn start_with(
        model: &Model,
        devices: &Devices,
        plan: &Plan,
        options: &Options,
        planner: impl FnOnce() -> Planner,
    ) -> Result<Self> {
        let Prepared { mut spec, run, stages, claim } = Prepared::new(model, devices, plan, options)?;
        if let Some(path) = &options.log_events {
            spec.events = Some(Box::new(EventLog::create(path, plan)?));
        }
        let (pipeline, recovery) = match options.max_recoveries {
            0 => (Pipeline::start(spec, &run, options.loading())?, None),
            _ => {
                let (pipeline, recovery) = Pipeline::start_recoverable(spec, &run, options.loading())?;
                (pipeline, Some(recovery))
            }
        };
        claim.allocated();
        let current = Current::new(plan, stages, claim);
        let supervisor = recovery.and_then(|recovery| {
            let (model, devices, current) = (model.clone(), devices.clone(), Arc::clone(&current));
            let options = options.clone();
            Supervised::new(recovery, model, &devices, planner(), options, current).start()
        });
        let pipeline = Arc::new(HeldPipeline { pipeline, supervisor, current });
        Ok(Self { model: model.clone(), pipeline, verifies_transfers: options.verify_transfers })
    }

    pub(crate) fn pipeline(&self) -> &HeldPipeline {
        &self.pipeline
    }

    /// Creates a session. An engine can have any number of sessions at the same time.
    pub fn session(&self) -> Session {
        Session::new(self.model.clone(), Arc::clone(&self.pipeline))
    }

    /// Returns the plan that the engine executes. A recovery replaces it.
    pub fn plan(&self) -> Arc<Plan> {
        self.pipeline.plan()
    }

    /// Returns the stages in pipeline order. If the plan has a prefill stage, it is the last. A recovery replaces them.
    pub fn stages(&self) -> Arc<[StageInfo]> {
        Arc::clone(&self.pipeline.current().stages)
    }

    /// Returns the state of the recovery from failures of devices.
    pub fn recovery(&self) -> RecoveryState {
        self.pipeline.current().recovery.clone()
    }

    /// Returns the statistics of all stages, all edges and the token return since the engine started. Those of stages,
    /// edges and the token return begin anew at each recovery.
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

    /// Returns the result and the cost of verified transfers since the engine started or recovered. They may not yet
    /// include the last few micro-batches. Returns `None` unless [`EngineOptions::verify_transfers`] was set.
    pub fn verified_transfers(&self) -> Option<VerifiedTransfers> {
        let since = self.verifies_transfers.then(|| self.pipeline.current().since)?;
        let elapsed_us = since.elapsed().as_secs_f64() * 1e6;
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

    /// Returns the trace of every queue since the engine started or recovered. The trace is empty unless
    /// [`EngineOptions::trace`] was set.
    pub fn trace(&self) -> Trace {
        Trace::new(self.pipeline.trace(), &self.stages())
    }

    /// Stops the pipeline and returns its trace. If sessions or streams still exist, the pipeline runs until
    /// they are dropped. Does not return an error if the pipeline has failed. The streams of its sequences
    /// return this error.
    ///
    /// Waits for work in flight, but not for a device that makes no progress for 0.8 s and for twice the predicted time.
    /// Such a device keeps its memory until it has finished its work.
    pub fn shutdown(self) -> Shutdown {
        let (spans, left, current) = match Arc::try_unwrap(self.pipeline) {
            Ok(held) => {
                let report = held.pipeline.shutdown();
                drop(held.supervisor);
                (report.trace, report.left, held.current)
            }
            Err(shared) => (shared.trace(), Vec::new(), Arc::clone(&shared.current)),
        };
        let stages = Arc::clone(&Current::lock(&current).stages);
        Shutdown { trace: Trace::new(spans, &stages), left }
    }
}
