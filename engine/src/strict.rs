//! Detects suspicious weights, so that a program can reject the model.

use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::TensorInfo;
use ragtag_kernels::blocks::dequantise;
use rayon::prelude::*;

/// Root mean square of a tensor's weights above which the tensor is suspicious. With such weights,
/// activations overflow within a few blocks.
const ABSURD_RMS: f64 = 1e3;

/// Maximum number of quantization blocks that the check dequantizes at a time. It limits the memory use.
const BATCH_BLOCKS: usize = 4096;

/// Checks the weights of a model for NaN, infinities, all-zero tensors and implausibly large values. Returns
/// one line per finding.
///
/// # Errors
/// Returns [`Error::Model`] if a tensor cannot be read.
pub fn suspicious_weights(model: &Model) -> Result<Vec<String>> {
    let tensors = model.graph().weights().tensors();
    let findings: Result<Vec<Option<String>>> =
        tensors.par_iter().map(|tensor| suspicion(model, tensor)).collect();
    Ok(findings?.into_iter().flatten().collect())
}

fn suspicion(model: &Model, tensor: &TensorInfo) -> Result<Option<String>> {
    let as_error = |cause: ragtag_graph::ModelError| Error::Model { name: model.name().into(), cause };
    let (block_bytes, block_values) = (tensor.tensor_type.block_bytes(), tensor.tensor_type.block_values());
    let mut bytes = vec![0; BATCH_BLOCKS * block_bytes];
    let mut values = vec![0.0f32; BATCH_BLOCKS * block_values];
    let (mut bad, mut squares, mut count) = (0u64, 0f64, 0u64);
    for start in (0..tensor.bytes).step_by(bytes.len()) {
        let blocks = &mut bytes[..(tensor.bytes - start).min((BATCH_BLOCKS * block_bytes) as u64) as usize];
        model.graph().weights().read(tensor, start, blocks).map_err(|e| as_error(e.into()))?;
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
        Some(format!("{name} has {bad} NaN or infinite values"))
    } else if rms == 0.0 {
        Some(format!("{name} is all zero"))
    } else if rms > ABSURD_RMS {
        Some(format!("{name} has a root mean square of {rms:.3e}"))
    } else {
        None
    })
}
