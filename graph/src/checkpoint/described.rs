//! Describes the weights of a checkpoint that has only `config.json`. The hyperparameters determine the
//! shapes.

use super::config;
use crate::arch::{Architecture, Hyperparameters};
use crate::error::ModelError;
use crate::source::Directory;
use crate::weights::Weights;
use ragtag_kernels::TensorType;

/// Returns the architecture, hyperparameters and weights that `config.json` describes. The weights have no
/// data. If `matrices` is given, matrices have this type, and norms are f32 as in GGUF files. Otherwise, all
/// weights have the type that `config.json` specifies.
pub(crate) fn describe(
    directory: &Directory,
    matrices: Option<TensorType>,
) -> Result<(&'static Architecture, Hyperparameters, Weights), ModelError> {
    let (architecture, h, tied) = config::read(directory)?;
    let (matrices, vectors) = match matrices {
        Some(matrices) => (matrices, TensorType::F32),
        None => {
            let named = config::tensor_type(directory)?;
            (named, named)
        }
    };
    let tensors = architecture.describe(&h, tied, matrices, vectors)?;
    Ok((architecture, h, Weights::new(Vec::new(), tensors)?))
}
