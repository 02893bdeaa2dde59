//! Weights that no trained model has: what `--strict` refuses before a run.

use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::TensorInfo;
use ragtag_kernels::blocks::dequantise;
use rayon::prelude::*;

/// Largest root mean square that a tensor of a working model has; beyond it activations overflow within few blocks.
const ABSURD_RMS: f64 = 1e3;

/// Blocks that are looked at together; bounds the memory of the check.
const BATCH_BLOCKS: usize = 4096;

/// What is wrong with the weights of a model: NaN, infinities, nothing but zeros, absurd norms. One line a tensor.
///
/// # Errors
/// [`Error::Model`] if a tensor cannot be read.
pub fn suspicious_weights(model: &Model) -> Result<Vec<String>> {
    let tensors = model.graph().weights().tensors();
    let findings: Result<Vec<Option<String>>> =
        tensors.par_iter().map(|tensor| suspicion(model, tensor)).collect();
    Ok(findings?.into_iter().flatten().collect())
}

fn suspicion(model: &Model, tensor: &TensorInfo) -> Result<Option<String>> {
    let as_error = |cause: ragtag_graph::ModelError| Error::Model { name: model.name().into(), cause };
    let bytes = model.graph().weights().bytes(tensor).map_err(|e| as_error(e.into()))?;
    let (block_bytes, block_values) = (tensor.tensor_type.block_bytes(), tensor.tensor_type.block_values());
    let mut values = vec![0.0f32; BATCH_BLOCKS * block_values];
    let (mut bad, mut squares, mut count) = (0u64, 0f64, 0u64);
    for blocks in bytes.chunks(BATCH_BLOCKS * block_bytes) {
        let values = &mut values[..blocks.len() / block_bytes * block_values];
        dequantise(tensor.tensor_type, blocks, values).map_err(|e| as_error(e.into()))?;
        for &value in values.iter() {
            if value.is_finite() {
                squares += f64::from(value) * f64::from(value);
            } else {
                bad += 1;
            }
        }
        count += values.len() as u64;
    }
    let rms = (squares / count.max(1) as f64).sqrt();
    let name = &tensor.name;
    Ok(if bad > 0 {
        Some(format!("{name} has {bad} values that are NaN or infinite"))
    } else if rms == 0.0 {
        Some(format!("{name} is all zero"))
    } else if rms > ABSURD_RMS {
        Some(format!("{name} has a root mean square of {rms:.3e}"))
    } else {
        None
    })
}
