//! Describes the weights of a checkpoint from `config.json` alone. The hyperparameters determine the shapes.

use super::{config, names};
use crate::arch::{Architecture, Hyperparameters};
use crate::model::ModelError;
use crate::source::Directory;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::TensorType;

/// Returns the architecture, hyperparameters and weights that `config.json` describes. The weights have no
/// data. If `matrices` is given, matrices have this type, and norms are f32 as in GGUF files. Otherwise all
/// weights have the type in `config.json`.
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
    let mut tensors = Vec::new();
    let mut add = |name: String| {
        let shape = shape(&h, &name);
        let tensor_type = if shape.len() > 1 { matrices } else { vectors };
        tensors.push(described(name, tensor_type, shape)?);
        Ok::<_, ModelError>(())
    };
    add("token_embd.weight".into())?;
    for layer in 0..h.layers {
        names::inner().try_for_each(|part| add(format!("blk.{layer}.{part}")))?;
    }
    add("output_norm.weight".into())?;
    if !tied {
        add(names::HEAD.into())?;
    }
    Ok((architecture, h, Weights::new(Vec::new(), tensors)?))
}

/// Returns the shape of the tensor called `name`, row length first.
fn shape(h: &Hyperparameters, name: &str) -> Vec<u64> {
    let of_heads = |heads: u32| u64::from(heads) * u64::from(h.head_dimensions);
    let (width, hidden, vocabulary) =
        (u64::from(h.width), u64::from(h.feed_forward), u64::from(h.vocabulary));
    let part = name.strip_suffix(".weight").unwrap_or(name);
    match part.rsplit('.').next().unwrap_or(part) {
        "token_embd" | "output" => vec![width, vocabulary],
        "attn_q" => vec![width, of_heads(h.heads)],
        "attn_k" | "attn_v" => vec![width, of_heads(h.kv_heads)],
        "attn_output" => vec![of_heads(h.heads), width],
        "ffn_gate" | "ffn_up" => vec![width, hidden],
        "ffn_down" => vec![hidden, width],
        _ => vec![width],
    }
}

/// Creates a tensor that has no data in a file.
fn described(name: String, tensor_type: TensorType, shape: Vec<u64>) -> Result<TensorInfo, ModelError> {
    let columns = shape.first().copied().unwrap_or(1);
    let values = shape.iter().try_fold(1u64, |values, extent| values.checked_mul(*extent));
    let whole = columns.is_multiple_of(tensor_type.block_values() as u64);
    let bytes = values.filter(|_| whole).and_then(|values| tensor_type.bytes(values)).ok_or_else(|| {
        let what = format!(
            "tensor {name} as {tensor_type}: rows of {columns} values are not whole blocks of {}",
            tensor_type.block_values()
        );
        ModelError::Unsupported { what }
    })?;
    Ok(TensorInfo { name, tensor_type, shape, shard: 0, offset: 0, bytes })
}
