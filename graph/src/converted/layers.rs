//! Tensors that hold the parts of all layers. The graph reads each part in its layer.

use super::latent::without_data;
use super::{Conversion, TensorBytes, add};
use crate::arch::{Hyperparameters, LAYER_PROJECTION, LAYER_TABLE};
use crate::error::{ModelError, SourceError};
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::TensorType;

/// Some columns of a matrix.
struct Columns {
    bytes: TensorBytes,
    tensor_type: TensorType,
    /// Blocks of a row of the matrix.
    row_blocks: u64,
    /// First block of these columns in a row, and their number.
    first: u64,
    blocks: u64,
}

impl Conversion for Columns {
    fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    fn values(&self) -> &TensorBytes {
        &self.bytes
    }

    fn factor(&self) -> f32 {
        self.bytes.source.factor()
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let size = self.tensor_type.block_bytes();
        let (mut at, mut out) = (first, out);
        while !out.is_empty() {
            let (row, start) = (at / self.blocks, at % self.blocks);
            let blocks = ((out.len() / size) as u64).min(self.blocks - start);
            let (of_row, rest) = out.split_at_mut(blocks as usize * size);
            let from = (row * self.row_blocks + self.first + start) * size as u64;
            self.bytes.source.read(self.bytes.offset.saturating_add(from), of_row)?;
            (at, out) = (at + blocks, rest);
        }
        Ok(())
    }
}

/// Returns `weights` with an embedding table and a projection of each layer instead of those of all layers.
///
/// # Errors
/// Fails if such a tensor has another shape than the hyperparameters say, or if the rows of a layer are not whole blocks.
pub(crate) fn split_layers(weights: Weights, h: &Hyperparameters) -> Result<Weights, ModelError> {
    let Some(size) = h.extras.layer_embedding else { return Ok(weights) };
    let last = format!("blk.{}.inp_gate.weight", h.layers - 1);
    if weights.tensor(&last).is_none() && weights.tensor(LAYER_TABLE).is_some() {
        // A file may claim any number of layers.
        return Err(ModelError::MissingTensor { name: last });
    }
    let all = u64::from(h.layers) * u64::from(size);
    let (mut sources, mut tensors) = (weights.sources().to_vec(), Vec::new());
    for tensor in weights.tensors() {
        let (expected, shape, stem) = match &*tensor.name {
            LAYER_TABLE => {
                let rows = h.vocabulary.into();
                (vec![all, rows], vec![size.into(), rows], "per_layer_token_embd")
            }
            LAYER_PROJECTION => {
                let columns = h.width.into();
                (vec![columns, all], vec![columns, size.into()], "per_layer_model_proj")
            }
            _ => {
                tensors.push(tensor.clone());
                continue;
            }
        };
        if tensor.shape != expected {
            let (name, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(ModelError::Shape { name, expected, found });
        }
        let source = sources.get(tensor.shard).filter(|_| weights.holds(tensor)).cloned();
        let whole = source.map(|source| TensorBytes { source, offset: tensor.offset, bytes: tensor.bytes });
        let block = tensor.tensor_type.block_values() as u64;
        for layer in 0..u64::from(h.layers) {
            let name = format!("blk.{layer}.{stem}.weight");
            let part = match &whole {
                Some(bytes) if tensor.name == LAYER_TABLE => {
                    let (first, blocks) = (layer * u64::from(size) / block, u64::from(size) / block);
                    let (bytes, tensor_type, row_blocks) = (bytes.clone(), tensor.tensor_type, all / block);
                    let columns = Columns { bytes, tensor_type, row_blocks, first, blocks };
                    add(&mut sources, name, shape.clone(), columns)
                }
                _ => without_data(tensor, name, shape.clone()).map(|part| {
                    // The rows of a layer follow those of the layer before.
                    let offset = tensor.offset.saturating_add(layer * part.bytes);
                    TensorInfo { offset: if whole.is_some() { offset } else { part.offset }, ..part }
                }),
            };
            let what = || format!("tensor {} of type {}", tensor.name, tensor.tensor_type);
            tensors.push(part.ok_or_else(|| ModelError::Unsupported { what: what() })?);
        }
    }
    Ok(Weights::new(sources, tensors)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use crate::test_models::Shape;
    use ragtag_kernels::blocks::quantise;
    use std::sync::Arc;

    const LAYERS: usize = 3;
    const WIDTH: usize = 64;
    const ROWS: usize = 5;

    /// Returns weights with a table or a projection of all layers, and the values of the tensor.
    fn weights(name: &str, tensor_type: TensorType, shape: [usize; 2]) -> (Weights, Vec<f32>) {
        let exact: Vec<f32> =
            (0..shape[0] * shape[1]).map(|i| (i * 7919 % 251) as f32 / 64.0 - 2.0).collect();
        let mut bytes = vec![0; tensor_type.bytes(exact.len() as u64).unwrap() as usize];
        quantise(tensor_type, &exact, &mut bytes).unwrap();
        let found = super::super::values(tensor_type, &bytes);
        let tensor =
            TensorInfo::described(name, tensor_type, shape.map(|size| size as u64).to_vec()).unwrap();
        let source = Arc::new(MemorySource::new("file", bytes));
        let gates = (0..4).map(|layer| TensorInfo {
            name: format!("blk.{layer}.inp_gate.weight"),
            bytes: 0,
            ..tensor.clone()
        });
        let tensors = std::iter::once(tensor.clone()).chain(gates).collect();
        (Weights::new(vec![source], tensors).unwrap(), found)
    }

    fn hyperparameters(size: u32) -> Hyperparameters {
        let (width, vocabulary) = (WIDTH as u32, ROWS as u32);
        let shape = Shape { layers: LAYERS as u32, width, ffn: 64, heads: 2, kv_heads: 1, vocabulary };
        let mut h = shape.without_bytes(|_| TensorType::Q4_0).hyperparameters().clone();
        h.extras.layer_embedding = Some(size);
        h
    }

    #[test]
    fn parts_hold_the_values_of_their_layer() {
        let size = 32;
        for tensor_type in [TensorType::F32, TensorType::BF16, TensorType::Q8_0] {
            for (name, shape) in
                [(LAYER_TABLE, [LAYERS * size, ROWS]), (LAYER_PROJECTION, [WIDTH, LAYERS * size])]
            {
                let (weights, whole) = weights(name, tensor_type, shape);
                let split = split_layers(weights, &hyperparameters(size as u32)).unwrap();
                let parts = split.tensors().iter().filter(|tensor| tensor.name.contains(".per_layer_"));
                for (layer, tensor) in parts.clone().enumerate() {
                    let expected: Vec<f32> = if name == LAYER_TABLE {
                        let rows = whole.chunks_exact(LAYERS * size);
                        rows.flat_map(|row| row[layer * size..][..size].to_vec()).collect()
                    } else {
                        whole[layer * size * WIDTH..][..size * WIDTH].to_vec()
                    };
                    assert!(tensor.name.starts_with(&format!("blk.{layer}.")), "{}", tensor.name);
                    assert_eq!(super::super::values(tensor_type, &split.bytes(tensor).unwrap()), expected);
                }
                assert_eq!(parts.count(), LAYERS);
            }
        }
    }

    #[test]
    fn rejects_parts_without_whole_blocks_and_wrong_shapes() {
        let split = |size: usize, shape| {
            let (weights, _) = weights(LAYER_TABLE, TensorType::Q8_0, shape);
            split_layers(weights, &hyperparameters(size as u32)).map(drop).unwrap_err()
        };
        assert!(matches!(split(32, [LAYERS * 32, ROWS + 1]), ModelError::Shape { .. }));
        let h = Hyperparameters { layers: 4, ..hyperparameters(24) };
        let (weights, _) = weights(LAYER_TABLE, TensorType::Q8_0, [96, ROWS]);
        assert!(matches!(split_layers(weights, &h).map(drop), Err(ModelError::Unsupported { .. })));
    }
}
