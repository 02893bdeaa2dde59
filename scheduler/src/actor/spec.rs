//! The description of a stage.

use super::streaming::Streamed;
use super::weights::WeightSource;
use ragtag_graph::CompiledStage;
use ragtag_graph::execution::Arenas;
use std::time::Duration;

/// A stage: its device, its compiled program and its weights.
pub struct StageSpec {
    /// Index of the stage's device in [`PipelineSpec::devices`](crate::PipelineSpec::devices). Neighbouring stages have different devices.
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
    /// Predicted time of the longest computation, if it is known.
    pub longest: Option<Duration>,
    /// Time after which a computation that does not complete ends the run. It starts when the previous computation
    /// of the device has completed. `None` disables the limit.
    pub compute_timeout: Option<Duration>,
    /// Source of the stage's weights.
    pub weights: Box<dyn WeightSource>,
}

impl StageSpec {
    /// Creates a stage whose weights are resident, and whose computations have no limit.
    pub fn new(device: usize, compiled: CompiledStage, weights: Box<dyn WeightSource>) -> Self {
        let (streamed, from_file) = (Vec::new(), Vec::new());
        let (arenas, longest, compute_timeout) = (None, None, None);
        Self { device, compiled, streamed, arenas, from_file, longest, compute_timeout, weights }
    }

    pub(crate) fn arenas(&self) -> Arenas {
        Arenas::at_most(self.streamed.len(), self.arenas.unwrap_or(0))
    }

    /// Returns the streamed segments.
    pub(crate) fn streamed(&self) -> Streamed<'_> {
        Streamed { segments: &self.streamed, arenas: self.arenas(), from_file: &self.from_file }
    }
}
