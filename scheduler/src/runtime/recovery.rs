//! Recovery from the failure of a device, and changes of devices: the owner of a [`Recovery`] loads other stages, and the sequences of the pipeline
//! go on. The coordinator, the requests and their samplers stay.

use crate::error::{Error, Result};
use crate::runtime::request::Control;
use crate::runtime::spec::{LoadProgress, PipelineOptions, PipelineSpec};
use crate::runtime::stages::{Stages, Stopped, load};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use ragtag_graph::CompiledStage;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interruption of a pipeline by the failure of a device, or by [`Pipeline::interrupt`](crate::Pipeline::interrupt).
#[derive(Clone, Debug, PartialEq)]
pub struct Interruption {
    /// Error of the run. Without a recovery, the run ends with it.
    pub error: Error,
    /// Label of the device that has failed. `None` if the owner of the pipeline has interrupted it.
    pub device: Option<String>,
    /// Whether it has stopped the stages. Otherwise, the run was interrupted before, and this is only a notice.
    pub has_stopped: bool,
}

/// Replaces the stages of a pipeline after the failure of a device. [`Pipeline::start_recoverable`](crate::Pipeline) returns
/// it. Without its answer, an interrupted pipeline waits. Once it is dropped, failures end the run.
pub struct Recovery {
    pub(super) interruptions: Receiver<Interruption>,
    pub(super) controls: Sender<Control>,
    pub(super) stages: Arc<Mutex<Stages>>,
}

impl Recovery {
    /// Waits until a device fails, or the owner interrupts the pipeline. Returns `None` when the pipeline has stopped.
    pub fn wait(&self) -> Option<Interruption> {
        self.interruptions.recv().ok()
    }

    /// Waits like [`wait`](Self::wait), at most for `limit`. Returns `Continue` if nothing has happened.
    pub fn wait_for(&self, limit: Duration) -> ControlFlow<Option<Interruption>> {
        match self.interruptions.recv_timeout(limit) {
            Ok(interruption) => ControlFlow::Break(Some(interruption)),
            Err(RecvTimeoutError::Disconnected) => ControlFlow::Break(None),
            Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
        }
    }

    /// Interrupts the pipeline, as [`Pipeline::interrupt`](crate::Pipeline::interrupt) does.
    pub fn interrupt(&self) {
        let _ = self.controls.send(Control::Interrupt);
    }

    /// Waits until the threads of the failed pipeline have ended and freed the memory of their devices. Leaves a device
    /// behind that hangs, as [`Pipeline::shutdown`](crate::Pipeline::shutdown) does. Returns the labels of these devices.
    pub fn clear(&self) -> Vec<String> {
        let left = self.stopped().end();
        self.forget_weights();
        left
    }

    /// Takes the stopped stages. While they end, other stages may be loaded, if the devices have the memory for both. These
    /// keep the weights of CPU devices that they need again.
    pub fn stopped(&self) -> Stopped {
        Stages::stopped(&self.stages)
    }

    /// Returns the bytes of weights that a stage would keep on the device with this label. Pipelines with a prefill stage keep
    /// none.
    pub fn kept_bytes(&self, label: &str, stage: &CompiledStage) -> u64 {
        Stages::kept(&self.stages).bytes(label, stage)
    }

    /// Frees the weights of stopped stages. The next stages upload all of theirs.
    pub fn forget_weights(&self) {
        Stages::kept(&self.stages).retain(&[]);
    }

    /// Loads other stages, and lets the sequences go on with them. The stages must be of the same model.
    /// A sequence that does not fit them fails with [`Refusal::NoLongerFits`](crate::Refusal::NoLongerFits) or
    /// [`Refusal::TooManyBlocks`](crate::Refusal::TooManyBlocks).
    ///
    /// # Errors
    /// Those of [`Pipeline::start`](crate::Pipeline::start), after which other stages may be loaded. [`Error::Stopped`] if the
    /// pipeline has been shut down.
    pub fn restart(
        &self,
        pipeline: PipelineSpec,
        options: &PipelineOptions,
        progress: impl Fn(LoadProgress) + Send + Sync + 'static,
    ) -> Result<()> {
        let abort = Stages::begin(&self.stages)?;
        let kept = Stages::kept(&self.stages);
        if pipeline.prefill.is_some() {
            self.forget_weights();
        }
        let labels: Vec<_> = pipeline.devices.iter().map(|device| device.adapter().label()).collect();
        let loaded = load(pipeline, options, (abort, Some(&kept)), progress);
        kept.retain(if loaded.is_ok() { &labels } else { &[] });
        let (attached, loaded) = loaded?;
        Stages::replace(&self.stages, loaded)?;
        let _ = self.controls.send(Control::Attach(Box::new(attached)));
        Ok(())
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        let _ = self.controls.send(Control::GiveUp);
    }
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery").finish_non_exhaustive()
    }
}
