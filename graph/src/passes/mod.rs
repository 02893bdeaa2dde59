//! Passes over the operator graph. They reduce launches and memory traffic, or select activation types.

mod append;
mod norm;
mod quantize;
mod residual;
mod split;
mod widen;

pub(crate) use append::fuse_appends;
pub(crate) use norm::{fuse_gates, fuse_norms};
pub(crate) use quantize::quantize_activations;
pub(crate) use residual::fuse_residuals;
pub(crate) use split::{SplitRows, Splits, split_attention};
pub(crate) use widen::widen_weights;
