//! Stages: how a plan lowers the model, the weights of a stage, and the description of a running stage.

use crate::model::Model;
use ragtag_graph::{CompiledStage, Lowering, WeightBuffer, WeightChunk, Weights};
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::WeightSource;
use std::ops::Range;
use std::sync::Arc;

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
