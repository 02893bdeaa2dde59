//! Passes over the operator graph: each makes the same model cheaper to run.

mod quantize;
mod residual;

pub(crate) use quantize::quantize_activations;
pub(crate) use residual::fuse_residuals;
