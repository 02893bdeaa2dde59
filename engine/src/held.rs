//! A pipeline with what it executes now, and the thread that recovers it.

use crate::ledger::Claim;
use crate::recovery::{RecoveryState, Supervisor};
use crate::stage::StageInfo;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::Pipeline;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The plan and the stages that a pipeline executes. A recovery replaces them.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) plan: Arc<Plan>,
    pub(crate) stages: Arc<[StageInfo]>,
    /// Time at which the stages were loaded.
    pub(crate) since: Instant,
    /// Claim on the memory of the stages. `None` while they are lost.
    pub(crate) claim: Option<Claim>,
    pub(crate) recovery: RecoveryState,
}

impl Current {
    pub(crate) fn new(plan: &Plan, stages: Vec<StageInfo>, claim: Claim) -> Arc<Mutex<Self>> {
        let (plan, stages, recovery) = (Arc::new(plan.clone()), stages.into(), RecoveryState::default());
        Arc::new(Mutex::new(Self { plan, stages, since: Instant::now(), claim: Some(claim), recovery }))
    }

    pub(crate) fn lock(current: &Mutex<Self>) -> MutexGuard<'_, Self> {
        current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipeline, and the claim on the memory that it holds. The claim ends after the pipeline, which ends before its
/// supervisor.
#[derive(Debug)]
pub(crate) struct HeldPipeline {
    pub(crate) pipeline: Pipeline,
    pub(crate) supervisor: Option<Supervisor>,
    pub(crate) current: Arc<Mutex<Current>>,
}

impl HeldPipeline {
    pub(crate) fn current(&self) -> MutexGuard<'_, Current> {
        Current::lock(&self.current)
    }

    /// Returns the plan that the pipeline executes.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.current().plan)
    }
}

impl Deref for HeldPipeline {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}
