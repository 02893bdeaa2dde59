//! Matrices of latent attention. Checkpoints have one matrix from the latent to the keys and the values of all heads. The
//! graph multiplies by its two parts apart, and by the part for keys in the other direction.

use super::{Conversion, TensorBytes, add, values};
use crate::arch::{Hyperparameters, Latent, layer_of};
use crate::error::{ModelError, SourceError};
use crate::weights::{TensorInfo, Weights, stored_bytes};
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::quantise;
use std::borrow::Cow;
use std::ops::Range;

/// End of the name of a matrix for keys and values.
const BOTH: &str = ".attn_kv_b.weight";

/// A matrix for keys and values. Each head has rows for its keys, then rows for its values.
struct Both {
    bytes: TensorBytes,
    tensor_type: TensorType,
    sizes: Latent,
}

impl Both {
    /// Returns the blocks of rows of one head.
    fn rows(&self, head: u64, rows: Range<u64>) -> Result<Cow<'_, [u8]>, SourceError> {
        let first = head * u64::from(self.sizes.plain + self.sizes.value);
        let row_bytes = self.row_blocks() * self.tensor_type.block_bytes() as u64;
        self.bytes.part((first + rows.start) * row_bytes..(first + rows.end) * row_bytes)
    }

    fn row_blocks(&self) -> u64 {
        u64::from(self.sizes.rank) / self.tensor_type.block_values() as u64
    }
}

/// The rows for values.
struct Values(Both);

impl Conversion for Values {
    fn tensor_type(&self) -> TensorType {
        self.0.tensor_type
    }

    fn values(&self) -> &TensorBytes {
        &self.0.bytes
    }

    fn factor(&self) -> f32 {
        self.0.bytes.source.factor()
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (plain, row_blocks) = (u64::from(self.0.sizes.plain), self.0.row_blocks());
        let head_blocks = u64::from(self.0.sizes.value) * row_blocks;
        of_heads(head_blocks, self.0.tensor_type, first, out, |head, blocks, out| {
            let rows = blocks.start / row_blocks..blocks.end.div_ceil(row_blocks);
            let read = self.0.rows(head, plain + rows.start..plain + rows.end)?;
            let skipped =
                (blocks.start - rows.start * row_blocks) as usize * self.0.tensor_type.block_bytes();
            out.copy_from_slice(&read[skipped..][..out.len()]);
            Ok(())
        })
    }
}

/// The rows for keys, transposed for each head. Types with blocks become F16.
struct Keys(Both);

impl Conversion for Keys {
    fn tensor_type(&self) -> TensorType {
        match self.0.tensor_type {
            same if same.block_values() == 1 => same,
            _ => TensorType::F16,
        }
    }

    fn values(&self) -> &TensorBytes {
        &self.0.bytes
    }

    fn factor(&self) -> f32 {
        self.0.bytes.source.factor()
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let [plain, rank] = [self.0.sizes.plain, self.0.sizes.rank].map(u64::from);
        let (tensor_type, stored) = (self.tensor_type(), self.0.tensor_type);
        let size = tensor_type.block_bytes();
        of_heads(plain * rank, tensor_type, first, out, |head, range, out| {
            let mut rows = self.0.rows(head, 0..plain)?;
            if stored != tensor_type {
                let mut halves = vec![0; (plain * rank) as usize * size];
                quantise(tensor_type, &values(stored, &rows), &mut halves).expect("values without blocks");
                rows = halves.into();
            }
            for (at, out) in range.zip(out.chunks_exact_mut(size)) {
                let from = (at % plain * rank + at / plain) as usize * size;
                out.copy_from_slice(&rows[from..from + size]);
            }
            Ok(())
        })
    }
}

/// Calls `convert` for each head that has some of the blocks from `first` on, with their numbers in this head, and with
/// their place in `out`.
fn of_heads(
    head_blocks: u64,
    tensor_type: TensorType,
    first: u64,
    out: &mut [u8],
    mut convert: impl FnMut(u64, Range<u64>, &mut [u8]) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let (mut first, mut out) = (first, out);
    while !out.is_empty() {
        let (head, start) = (first / head_blocks, first % head_blocks);
        let blocks = ((out.len() / tensor_type.block_bytes()) as u64).min(head_blocks - start);
        let (of_head, rest) = out.split_at_mut(blocks as usize * tensor_type.block_bytes());
        convert(head, start..start + blocks, of_head)?;
        (first, out) = (first + blocks, rest);
    }
    Ok(())
}

/// Returns `weights` with a matrix for keys and a matrix for values instead of each matrix for both.
///
/// # Errors
/// Fails if such a matrix has another shape than the hyperparameters say, or if two tensors have one name.
pub(crate) fn split_latents(weights: Weights, h: &Hyperparameters) -> Result<Weights, ModelError> {
    let Some(sizes) = h.extras.latent else { return Ok(weights) };
    // Layers that predict further tokens are not read.
    let is_read = |name: &str| layer_of(name).is_some_and(|layer| layer < h.layers);
    let is_both = |tensor: &&TensorInfo| tensor.name.ends_with(BOTH) && is_read(&tensor.name);
    let latents = (0..h.layers).filter(|layer| !h.extras.recurrent_layers.contains(*layer));
    let names = latents.map(|layer| format!("blk.{layer}{BOTH}"));
    let is_missing = |name: &String| {
        weights.tensor(name).is_none() && weights.tensor(&name.replace("attn_kv_b", "attn_k_b")).is_none()
    };
    if let Some(name) = { names }.find(is_missing) {
        return Err(ModelError::MissingTensor { name });
    }
    if weights.tensors().iter().all(|tensor| !is_both(&tensor)) {
        return Ok(weights);
    }
    let (mut sources, mut tensors) = (weights.sources().to_vec(), Vec::new());
    for tensor in weights.tensors() {
        if !is_both(&tensor) {
            tensors.push(tensor.clone());
            continue;
        }
        let expected = vec![sizes.rank.into(), u64::from(h.heads) * u64::from(sizes.plain + sizes.value)];
        if tensor.shape != expected {
            let (name, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(ModelError::Shape { name, expected, found });
        }
        let source = sources.get(tensor.shard).filter(|_| weights.holds(tensor)).cloned();
        let both = |bytes| Both { bytes, tensor_type: tensor.tensor_type, sizes };
        let bytes = source.map(|source| TensorBytes { source, offset: tensor.offset, bytes: tensor.bytes });
        let name = |part: &str| tensor.name.replace("attn_kv_b", part);
        let shape = |columns: u32, rows: u32| vec![columns.into(), rows.into(), h.heads.into()];
        let key_shape = shape(sizes.plain, sizes.rank);
        let (keys, value_shape) = (name("attn_k_b"), shape(sizes.rank, sizes.value));
        let parts = match bytes {
            Some(bytes) => [
                add(&mut sources, keys, key_shape, Keys(both(bytes.clone()))),
                add(&mut sources, name("attn_v_b"), value_shape, Values(both(bytes))),
            ],
            None => {
                [without_data(tensor, keys, key_shape), without_data(tensor, name("attn_v_b"), value_shape)]
            }
        };
        for part in parts {
            let what = || format!("tensor {} of type {}", tensor.name, tensor.tensor_type);
            tensors.push(part.ok_or_else(|| ModelError::Unsupported { what: what() })?);
        }
    }
    Ok(Weights::new(sources, tensors)?)
}

/// Returns a part of a matrix whose data is missing. The part then ends where the matrix ends.
pub(super) fn without_data(whole: &TensorInfo, name: String, shape: Vec<u64>) -> Option<TensorInfo> {
    let bytes = stored_bytes(whole.tensor_type, &shape).ok()?;
    let offset = whole.offset.saturating_add(whole.bytes).saturating_sub(bytes);
    Some(TensorInfo { name, shape, offset, bytes, ..whole.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use crate::test_models::Shape;
    use ragtag_kernels::blocks::dequantise;
    use std::sync::Arc;

    const SIZES: Latent =
        Latent { query_rank: None, rank: 64, plain: 32, rotating: 16, value: 48, growth: None };
    const HEADS: usize = 3;

    fn hyperparameters() -> Hyperparameters {
        let shape = Shape { layers: 1, width: 64, ffn: 64, heads: 2, kv_heads: 1, vocabulary: 32 };
        let mut h = shape.without_bytes(|_| TensorType::Q4_0).hyperparameters().clone();
        (h.heads, h.extras.latent) = (HEADS as u32, Some(SIZES));
        h
    }

    /// Returns weights with a matrix of this type and number of rows, and the values of the matrix.
    fn weights(tensor_type: TensorType, rows: usize) -> (Weights, Vec<f32>) {
        let rank = SIZES.rank as usize;
        let exact: Vec<f32> = (0..rows * rank).map(|i| (i * 7919 % 251) as f32 / 64.0 - 2.0).collect();
        let mut bytes = vec![0; tensor_type.bytes(exact.len() as u64).unwrap() as usize];
        quantise(tensor_type, &exact, &mut bytes).unwrap();
        let mut found = vec![0.0; exact.len()];
        dequantise(tensor_type, &bytes, &mut found).unwrap();
        let shape = vec![rank as u64, rows as u64];
        let tensor = TensorInfo::described("blk.0.attn_kv_b.weight", tensor_type, shape).unwrap();
        let source = Arc::new(MemorySource::new("file", bytes));
        (Weights::new(vec![source], vec![tensor]).unwrap(), found)
    }

    #[test]
    fn parts_hold_the_values_of_the_whole() {
        let [rank, plain, value] = [SIZES.rank, SIZES.plain, SIZES.value].map(|size| size as usize);
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0] {
            let (weights, whole) = weights(tensor_type, HEADS * (plain + value));
            let split = split_latents(weights, &hyperparameters()).unwrap();
            let [keys, values] = split.tensors() else { panic!("two tensors") };
            assert_eq!((&*keys.name, &*values.name), ("blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"));
            assert_eq!([&keys.shape[..], &values.shape], [&[32, 64, 3][..], &[64, 48, 3]]);
            assert_eq!(values.tensor_type, tensor_type);
            let read = |tensor: &TensorInfo| {
                let bytes = split.bytes(tensor).unwrap().into_owned();
                // Parts of the bytes are those of the whole, wherever they start.
                let block = tensor.tensor_type.block_bytes();
                for start in (0..bytes.len()).step_by(37 * block) {
                    let mut part = vec![0; (bytes.len() - start).min(5000 / block * block)];
                    split.read(tensor, start as u64, &mut part).unwrap();
                    assert!(part == bytes[start..start + part.len()], "{tensor_type} from {start}");
                }
                super::values(tensor.tensor_type, &bytes)
            };
            let (keys, values) = (read(keys), read(values));
            for head in 0..HEADS {
                let whole = &whole[head * (plain + value) * rank..][..(plain + value) * rank];
                for at in 0..rank * plain {
                    let wanted = whole[at % plain * rank + at / plain];
                    let error = (keys[head * rank * plain + at] - wanted).abs();
                    let most = if tensor_type == TensorType::Q8_0 { 1e-3 } else { 0.0 };
                    assert!(error <= most, "{tensor_type}, head {head}, value {at}: {error}");
                }
                assert!(values[head * value * rank..][..value * rank] == whole[plain * rank..], "{head}");
            }
        }
    }

    #[test]
    fn matrices_of_other_shapes_are_refused() {
        let h = hyperparameters();
        let (weights, _) = weights(TensorType::F32, HEADS * 80 - 1);
        let error = split_latents(weights, &h).map(drop).unwrap_err().to_string();
        assert!(error.contains("attn_kv_b") && error.contains("240"), "{error}");
        let none = Weights::new(Vec::new(), Vec::new()).unwrap();
        let error = split_latents(none, &h).map(drop).unwrap_err().to_string();
        assert_eq!(error, "tensor blk.0.attn_kv_b.weight is missing");
    }
}
