//! The stages that this host runs for a coordinator on another host.

use crate::actor::StageReport;
use crate::core::{ResultRows, RunShape};
use crate::error::Result;
use crate::mailbox::Notice;
use crate::message::{DeviceAddress, DeviceUrgent, RunAddress, RunMessage};
use crate::runtime::spec::{PipelineOptions, PipelineSpec};
use crate::runtime::stages::{Linked, Loaded, load_for};
use ragtag_hal::Timeline;
use std::sync::{Arc, Mutex};

/// Loaded stages of this host.
pub(crate) struct HostedStages {
    linked: Linked,
    loaded: Loaded,
    /// For each stage of the pipeline, whether this host has it.
    is_own: Vec<bool>,
}

/// The end of the last stage.
pub(crate) struct LastStage {
    /// Its download timeline.
    pub(crate) timeline: Arc<Timeline>,
    /// Notice of its progress.
    pub(crate) notice: Notice,
}

impl HostedStages {
    /// Loads the stages of this host. The devices' threads call `progress` with a stage and a number of bytes.
    pub(crate) fn load(
        pipeline: PipelineSpec,
        options: &PipelineOptions,
        run: &RunAddress,
        progress: impl Fn(u32, u64) + Send + Sync + 'static,
    ) -> Result<Self> {
        let is_own = pipeline.stages.iter().map(|stage| pipeline.remote_stage(stage).is_none()).collect();
        let before = Mutex::new(0);
        let (linked, loaded) = load_for(pipeline, options, run, (Arc::default(), None), move |loaded| {
            let mut before = before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let bytes = loaded.done_bytes.saturating_sub(*before);
            *before += bytes;
            progress(loaded.stage, bytes);
        })?;
        let stages = Self { linked, loaded, is_own };
        if let Some(last) = stages.last() {
            let moved = run.clone();
            last.notice.listen(&last.timeline, move || drop(moved.send(RunMessage::Downloaded)), |_| {});
        }
        Ok(stages)
    }

    /// Returns the address and the index of the first stage, if this host has it.
    pub(crate) fn first(&self) -> Option<(DeviceAddress, usize)> {
        let (device, stage) = self.linked.ends[0].first;
        self.is_own[0].then(|| (self.linked.addresses[device].clone(), stage))
    }

    /// Returns the end of the last stage, if this host has it.
    pub(crate) fn last(&self) -> Option<LastStage> {
        let ends = &self.linked.ends[0];
        let last = || LastStage { timeline: Arc::clone(&ends.last), notice: ends.notice.clone() };
        self.is_own.last().is_some_and(|own| *own).then(last)
    }

    pub(crate) fn shape(&self) -> RunShape {
        self.linked.run.clone()
    }

    /// Reads the results of a micro-batch, whose download must have completed.
    pub(crate) fn results(&self, rows: ResultRows) -> Result<Vec<u8>> {
        let (mut results, logits) = (Vec::new(), &self.linked.logits);
        for range in logits.places.of(rows) {
            results.extend_from_slice(&logits.read(range)?);
        }
        Ok(results)
    }

    /// Returns the reports of the stages of this host.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (u32, &Arc<Mutex<StageReport>>)> {
        let all = (0..).zip(self.loaded.reports()).zip(&self.is_own);
        all.filter(|(_, own)| **own).map(|(report, _)| report)
    }

    /// Ends the stages.
    pub(crate) fn end(mut self) {
        self.linked.addresses.iter().for_each(|address| address.send_urgent(DeviceUrgent::Stop));
        self.loaded.end(Some(self.linked.watch));
    }
}
