//! Projections of gated delta nets whose rows are grouped by key head, as in checkpoints of Qwen3-Next and in its older GGUF
//! files. The rows of a key head are those of its query, its key, its values and their gates. The graph reads one matrix for
//! queries, keys and values, and one for gates.

use super::latent::without_data;
use super::{Conversion, TensorBytes, add};
use crate::arch::{Hyperparameters, Recurrent, layer_of};
use crate::error::{ModelError, SourceError};
use crate::ops::ScanHeads;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::TensorType;

/// End of the name of a matrix with all rows.
const ALL: &str = ".ssm_in.weight";

/// Rows of a matrix, part by part.
struct Parts {
    bytes: TensorBytes,
    tensor_type: TensorType,
    row_bytes: u64,
    /// Number of key heads, and of rows of each.
    heads: u64,
    group: u64,
    /// First row of each part among those of a key head, and the number of rows.
    parts: Vec<(u64, u64)>,
}

impl Parts {
    /// Returns the row of the file, and the number of rows from there on that follow each other in both.
    fn in_file(&self, mut row: u64) -> Option<(u64, u64)> {
        for (first, rows) in &self.parts {
            if row < self.heads * rows {
                return Some((row / rows * self.group + first + row % rows, rows - row % rows));
            }
            row -= self.heads * rows;
        }
        None
    }
}

impl Conversion for Parts {
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
        let (mut at, mut out) = (first * self.tensor_type.block_bytes() as u64, out);
        while !out.is_empty() {
            let (row, skipped) = (at / self.row_bytes, at % self.row_bytes);
            let (from, rows) = self.in_file(row).expect("a row of the matrix");
            let bytes = (rows * self.row_bytes - skipped).min(out.len() as u64);
            let (of_rows, rest) = out.split_at_mut(bytes as usize);
            let start = self.bytes.offset.saturating_add(from * self.row_bytes + skipped);
            self.bytes.source.read(start, of_rows)?;
            (at, out) = (at + bytes, rest);
        }
        Ok(())
    }
}

/// Returns `weights` with two matrices instead of each matrix whose rows are grouped by key head.
///
/// # Errors
/// Fails if such a matrix has another shape than the hyperparameters say, or if two tensors have one name.
pub(crate) fn split_key_heads(weights: Weights, h: &Hyperparameters) -> Result<Weights, ModelError> {
    let Some(Recurrent::DeltaNet { heads, .. }) = h.extras.recurrent else { return Ok(weights) };
    let is_read = |name: &str| layer_of(name).is_some_and(|layer| layer < h.layers);
    let is_whole = |tensor: &TensorInfo| tensor.name.ends_with(ALL) && is_read(&tensor.name);
    if !weights.tensors().iter().any(is_whole) {
        return Ok(weights);
    }
    let ScanHeads { count, keys, key_dimension, value_dimension } = heads;
    let [keys, key, values] = [keys, key_dimension, count / keys * value_dimension].map(u64::from);
    let group = 2 * (key + values);
    let (mut sources, mut tensors) = (weights.sources().to_vec(), Vec::new());
    for tensor in weights.tensors() {
        if !is_whole(tensor) {
            tensors.push(tensor.clone());
            continue;
        }
        let expected = vec![h.width.into(), keys * group];
        if tensor.shape != expected {
            let (name, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(ModelError::Shape { name, expected, found });
        }
        let source = sources.get(tensor.shard).filter(|_| weights.holds(tensor)).cloned();
        let qkv = vec![(0, key), (key, key), (2 * key, values)];
        for (part, parts) in [("attn_qkv", qkv), ("attn_gate", vec![(2 * key + values, values)])] {
            let name = tensor.name.replace("ssm_in", part);
            let shape = vec![h.width.into(), keys * parts.iter().map(|(_, rows)| rows).sum::<u64>()];
            let added = match &source {
                None => without_data(tensor, name, shape),
                Some(source) => {
                    let (tensor_type, heads) = (tensor.tensor_type, keys);
                    let row_bytes = tensor.bytes / (keys * group);
                    let bytes =
                        TensorBytes { source: source.clone(), offset: tensor.offset, bytes: tensor.bytes };
                    let conversion = Parts { bytes, tensor_type, row_bytes, heads, group, parts };
                    add(&mut sources, name, shape, conversion)
                }
            };
            let what = || format!("tensor {} of type {}", tensor.name, tensor.tensor_type);
            tensors.push(added.ok_or_else(|| ModelError::Unsupported { what: what() })?);
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

    const WIDTH: usize = 64;
    const HEADS: ScanHeads = ScanHeads { count: 6, keys: 3, key_dimension: 2, value_dimension: 3 };
    const ROWS: usize = 3 * (2 * 2 + 2 * 6);

    fn hyperparameters() -> Hyperparameters {
        let width = WIDTH as u32;
        let shape = Shape { layers: 1, width, ffn: 64, heads: 2, kv_heads: 1, vocabulary: 32 };
        let mut h = shape.without_bytes(|_| TensorType::Q4_0).hyperparameters().clone();
        h.extras.recurrent = Some(Recurrent::DeltaNet { taps: 4, heads: HEADS, is_tiled: false });
        h
    }

    /// Returns weights with a matrix whose values are the numbers of its rows.
    fn weights(tensor_type: TensorType, rows: usize) -> Weights {
        let values: Vec<f32> = (0..rows * WIDTH).map(|at| (at / WIDTH) as f32).collect();
        let mut bytes = vec![0; tensor_type.bytes(values.len() as u64).unwrap() as usize];
        quantise(tensor_type, &values, &mut bytes).unwrap();
        let shape = vec![WIDTH as u64, rows as u64];
        let tensor = TensorInfo::described("blk.0.ssm_in.weight", tensor_type, shape).unwrap();
        Weights::new(vec![Arc::new(MemorySource::new("file", bytes))], vec![tensor]).unwrap()
    }

    #[test]
    fn rows_of_key_heads_become_two_matrices() {
        // Each key head has two rows for its query, two for its key, six for values and six for gates.
        let of_heads = |first: usize, rows: usize| {
            (0..3).flat_map(move |head| (0..rows).map(move |row| head * 16 + first + row))
        };
        let qkv: Vec<_> = of_heads(0, 2).chain(of_heads(2, 2)).chain(of_heads(4, 6)).collect();
        let gates: Vec<_> = of_heads(10, 6).collect();
        for tensor_type in [TensorType::F32, TensorType::BF16, TensorType::Q8_0] {
            let split = split_key_heads(weights(tensor_type, ROWS), &hyperparameters()).unwrap();
            let names: Vec<_> = split.tensors().iter().map(|tensor| &*tensor.name).collect();
            assert_eq!(names, ["blk.0.attn_qkv.weight", "blk.0.attn_gate.weight"]);
            for (tensor, expected) in split.tensors().iter().zip([&qkv, &gates]) {
                let bytes = split.bytes(tensor).unwrap().into_owned();
                let values = super::super::values(tensor_type, &bytes);
                let rows: Vec<_> = values.iter().step_by(WIDTH).map(|row| row.round() as usize).collect();
                assert_eq!(&rows, expected, "{tensor_type}");
                // Parts of the bytes are those of the whole, wherever they start.
                for start in (0..bytes.len()).step_by(37 * tensor_type.block_bytes()) {
                    let mut part = vec![0; (bytes.len() - start).min(1000)];
                    split.read(tensor, start as u64, &mut part).unwrap();
                    assert!(part == bytes[start..start + part.len()], "{tensor_type} from {start}");
                }
            }
        }
    }

    #[test]
    fn matrices_of_other_shapes_are_refused() {
        let error = split_key_heads(weights(TensorType::F32, ROWS - 1), &hyperparameters()).map(drop);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("ssm_in") && error.contains("48"), "{error}");
    }
}
