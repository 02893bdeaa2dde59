//! A pipeline with the memory that it holds.

use crate::ledger::Claim;
use ragtag_scheduler::Pipeline;
use std::ops::Deref;

/// A pipeline, and the claim on the memory that it holds. The claim ends after the pipeline.
#[derive(Debug)]
pub(crate) struct HeldPipeline {
    pub(crate) pipeline: Pipeline,
    pub(crate) _claim: Claim,
}

impl Deref for HeldPipeline {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}
