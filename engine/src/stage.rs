//! Stages: how a plan lowers the model, the weights of a stage, the time limit of its computations, and the
//! description of a running stage.

use crate::model::Model;
use ragtag_graph::{CompiledStage, Lowering, WeightBuffer, WeightChunk, Weights};
use ragtag_hal::{Adapter, AdapterKind};
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::WeightSource;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Number of predicted times that a computation may take. Predictions do not know long contexts or other programs.
const COMPUTE_TIMES: u32 = 20;

/// Shortest limit for computations. A driver may compile kernels when they first run.
const LEAST_COMPUTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Factor of the shortest limit on the CPU, which all programs share.
const CPU_TIMES: u32 = 10;

/// A stage of a running engine.
#[derive(Clone, Debug)]
pub struct StageInfo {
    /// Adapter on which the stage runs.
    pub adapter: Adapter,
    /// Range of segments that the stage runs.
    pub segments: Range<usize>,
    /// Names of the kernel variants that the stage's programs use.
    pub kernels: Vec<String>,
}

/// Returns the settings for lowering the model of a plan.
pub(crate) fn lowering(plan: &Plan, all_logits: bool) -> Lowering {
    Lowering {
        activations: plan.activations,
        kv: plan.kv,
        context: plan.context,
        sequences: plan.sequences,
        kv_blocks: Some(plan.kv_blocks),
        chunk: plan.chunk,
        logit_rows: if all_logits { plan.chunk } else { plan.logit_rows() },
        wire_type: plan.wire_type,
    }
}

/// Returns the predicted time of a stage's longest computation: a decode step, or the largest prefill chunk.
pub(crate) fn longest_computation(plan: &Plan, stage: &PlanStage) -> Option<Duration> {
    let predicted_rows = Some(plan.predicted.prefill_rows).filter(|&rows| rows > 0);
    let chunks = predicted_rows.map_or(1.0, |rows| f64::from(plan.chunk) / f64::from(rows));
    let longest_us = stage.predicted.decode_us.max(stage.predicted.prefill_us * chunks.max(1.0));
    Duration::try_from_secs_f64(longest_us / 1e6).ok()
}

/// Returns the time after which a computation that does not complete ends the run. `timeouts` are the options for
/// computations and for copies. `longest` is the predicted time of the longest computation.
pub(crate) fn compute_timeout(
    timeouts: (Option<Duration>, Option<Duration>),
    longest: Option<Duration>,
    kind: AdapterKind,
) -> Option<Duration> {
    let (compute, copy) = timeouts;
    if let Some(limit) = compute {
        return Some(limit).filter(|limit| !limit.is_zero());
    }
    let is_cpu = matches!(kind, AdapterKind::Cpu | AdapterKind::Software);
    let least = copy?.max(LEAST_COMPUTE_TIMEOUT).saturating_mul(if is_cpu { CPU_TIMES } else { 1 });
    Some(least.max(longest.unwrap_or_default().saturating_mul(COMPUTE_TIMES)))
}

/// Weight source that reads the model's files and packs the weights into the resident layouts of a device.
pub(crate) struct FileWeights {
    weights: Arc<Weights>,
    buffers: Vec<WeightBuffer>,
}

impl FileWeights {
    /// Creates the source of the weights for a compiled stage of `model`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computations_may_take_many_times_longer_than_predicted() {
        let limit = |compute: Option<u64>, copy: Option<u64>, longest, kind| {
            let timeouts = (compute.map(Duration::from_secs), copy.map(Duration::from_secs));
            compute_timeout(timeouts, Some(Duration::from_secs(longest)), kind).map(|limit| limit.as_secs())
        };
        let gpu = AdapterKind::Discrete;
        let by_copies = [Some(1), Some(60), None].map(|copy| limit(None, copy, 0, gpu));
        assert_eq!(by_copies, [Some(10), Some(60), None]);
        let by_kind = [gpu, AdapterKind::Software].map(|kind| limit(None, Some(60), 4, kind));
        assert_eq!(by_kind, [Some(80), Some(600)]);
        assert_eq!([2, 0].map(|compute| limit(Some(compute), None, 4, gpu)), [Some(2), None]);
    }
}
