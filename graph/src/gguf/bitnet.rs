//! Packings in files of BitNet models: I2_S, TL1 and TL2 of Microsoft's repository `BitNet`, and QK256 and
//! blocks of 32 weights with a scale, which have the number of I2_S. The sizes of tensors tell packings with
//! the same number apart.

use super::reader::Reader;
use crate::converted::{self, Lookup, Packing, Table, TensorBytes, Ternary, TwoBits};
use crate::error::{FormatError, Quoted};
use crate::source::Source;
use crate::weights::TensorInfo;
use ragtag_kernels::TensorType;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of I2_S. ggml once gave it to another type, which no file contains any more.
const I2_S: u32 = 36;
const TL1: u32 = 38;
/// Number of TL2, and of MXFP4 in all other files.
const TL2: u32 = 39;
/// Size of the last part of a tensor in I2_S, TL1 or TL2, which starts with the scale.
const TAIL_BYTES: u64 = 32;

/// Packing of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Packed {
    /// 128 weights in 32 bytes, with one scale at this byte of the tensor.
    I2S(u64),
    /// TL1 or TL2, with one scale at this byte of the tensor.
    Lookup(Lookup, u64),
    /// 256 weights in 64 bytes, without a scale.
    Qk256,
    /// 32 weights in 8 bytes, then their scale in f16.
    Blocks,
}

/// Returns whether tensors with the type `number` are in a packing for sure.
pub(super) fn is_packed(number: u32) -> bool {
    [I2_S, TL1].contains(&number)
}

/// Finds the tensors in a packing, and sets their sizes. `numbers` are the types of `tensors`, whose offsets
/// are relative to the start of the tensor data. `end` is the size of the file, if it must contain the data.
/// Removes tensors that only hold the scale of another tensor.
pub(super) fn find(
    tensors: &mut Vec<TensorInfo>,
    numbers: &[u32],
    reader: &Reader<'_>,
    alignment: u64,
    end: Option<u64>,
) -> Result<HashMap<String, Packed>, FormatError> {
    let (mut all, mut scales) = (HashMap::new(), HashSet::new());
    let is_candidate = |number: &u32| is_packed(*number) || *number == TL2;
    if !numbers.iter().any(is_candidate) {
        return Ok(all);
    }
    let mut starts: Vec<u64> = tensors.iter().map(|tensor| tensor.offset).collect();
    starts.sort_unstable();
    let end = end.map(|end| end.saturating_sub(reader.at().next_multiple_of(alignment)));
    let with_scales = tensors.iter().filter(|tensor| tensor.name.ends_with("_scale"));
    let apart: HashMap<String, u64> =
        with_scales.map(|tensor| (tensor.name.clone(), tensor.offset)).collect();
    for (tensor, number) in tensors.iter_mut().zip(numbers).filter(|(_, number)| is_candidate(number)) {
        let next = starts.get(starts.partition_point(|start| *start <= tensor.offset)).copied();
        let span = next.or(end).map(|next| next.saturating_sub(tensor.offset));
        let place = Span { bytes: span, is_last: next.is_none(), alignment };
        let scale = format!("{}_scale", tensor.name);
        let apart = apart.get(&scale).and_then(|offset| offset.checked_sub(tensor.offset));
        let found = match *number {
            I2_S => i2_s(&tensor.shape, place).map(Some),
            TL1 => lookup(Table::Pairs, tensor, place, apart),
            _ => lookup(Table::Triples, tensor, place, apart),
        };
        let shown = Quoted(&tensor.name);
        let found = found.map_err(|problem| match problem {
            Problem::Invalid(cause) => {
                reader.invalid(reader.at(), format_args!("tensor {shown} of shape {:?}", tensor.shape), cause)
            }
            Problem::Unsupported(found) => FormatError::UnsupportedTensorType {
                file: reader.file().to_owned(),
                tensor: shown.to_string(),
                found,
            },
        })?;
        if let Some((packed, bytes)) = found {
            tensor.bytes = bytes;
            scales.extend((matches!(packed, Packed::Lookup(..)) && apart.is_some()).then_some(scale));
            all.insert(tensor.name.clone(), packed);
        }
    }
    tensors.retain(|tensor| !scales.contains(&tensor.name));
    Ok(all)
}

/// Reason why a packing cannot be read.
enum Problem {
    Invalid(String),
    /// Description of the type.
    Unsupported(String),
}

/// Space of a tensor up to the next tensor, or up to the end of the file.
#[derive(Clone, Copy)]
struct Span {
    /// Size, if it is known.
    bytes: Option<u64>,
    is_last: bool,
    alignment: u64,
}

impl Span {
    /// Returns whether a tensor of `bytes` bytes fills the space, except for padding.
    fn is_filled_by(self, bytes: u64) -> bool {
        self.bytes.is_none_or(|span| span.checked_sub(bytes).is_some_and(|rest| rest < self.alignment))
    }
}

/// Returns the extents of a matrix and its number of values.
fn matrix(shape: &[u64], name: &str) -> Result<([u64; 2], u64), Problem> {
    let invalid = |cause: String| Problem::Invalid(cause);
    let &[columns, rows] = shape else { return Err(invalid(format!("is not a matrix ({name})"))) };
    let values = columns.checked_mul(rows).filter(|values| *values < u64::MAX / 2);
    Ok(([columns, rows], values.ok_or_else(|| invalid("is larger than any file".to_owned()))?))
}

/// Returns the packing of a tensor with the number of I2_S, and its size.
fn i2_s(shape: &[u64], span: Span) -> Result<(Packed, u64), Problem> {
    let ([columns, _], values) = matrix(shape, "I2_S")?;
    let quarter = values / 4;
    let all = [
        (128, Packed::I2S(quarter), quarter + TAIL_BYTES),
        (256, Packed::Qk256, quarter),
        (32, Packed::Blocks, values / 32 * 10),
    ];
    let mut possible = all.into_iter().filter(|(block, ..)| columns.is_multiple_of(*block));
    let Some((_, first, bytes)) = possible.clone().next() else {
        let cause =
            format!("has rows of {columns} values, which are not whole blocks of 32, 128 or 256 (I2_S)");
        return Err(Problem::Invalid(cause));
    };
    if let Some((_, packed, bytes)) = possible.find(|(.., bytes)| span.is_filled_by(*bytes)) {
        return Ok((packed, bytes));
    }
    let found = span.bytes.unwrap_or(0);
    if span.is_last && found < bytes {
        // The file is truncated.
        return Ok((first, bytes));
    }
    let needed = all.map(|(.., bytes)| bytes);
    Err(Problem::Invalid(format!(
        "has {found} bytes, but I2_S needs {}, QK256 {}, and blocks of 32 weights with a scale {} (convert the \
         model to i2_s with Microsoft's converter)",
        needed[0], needed[1], needed[2]
    )))
}

/// Returns the packing of a tensor with the number of TL1 or TL2, and its size. Returns `None` for a tensor in
/// MXFP4. `apart` is the distance to the tensor that holds the scale, if there is one.
fn lookup(
    table: Table,
    tensor: &TensorInfo,
    span: Span,
    apart: Option<u64>,
) -> Result<Option<(Packed, u64)>, Problem> {
    let name = if table == Table::Pairs { "TL1" } else { "TL2" };
    let size = |shape| {
        let bytes = converted::lookup_bytes(table, shape)?;
        Some((bytes, bytes.checked_add(if apart.is_some() { 0 } else { TAIL_BYTES })?))
    };
    if table == Table::Triples {
        let shape = <[u64; 2]>::try_from(&tensor.shape[..]).ok();
        let is_tl2 = |(_, bytes): (u64, u64)| span.bytes.is_some() && span.is_filled_by(bytes);
        // MXFP4 needs more than twice as many bytes.
        if span.is_filled_by(tensor.bytes) || !shape.and_then(size).is_some_and(is_tl2) {
            return Ok(None);
        }
    }
    let (shape, _) = matrix(&tensor.shape, name)?;
    let Some((bytes, all)) = size(shape) else {
        return Err(Problem::Invalid("is larger than any file".to_owned()));
    };
    let [columns, rows] = shape;
    let lookup = Lookup::find(table, shape).ok_or_else(|| {
        Problem::Unsupported(format!(
            "{name} and {rows} rows of {columns} weights (the order of its weights depends on sizes of tiles \
             that are not in the file; convert the model to i2_s)"
        ))
    })?;
    if !span.is_last && !span.is_filled_by(all) {
        let found = span.bytes.unwrap_or(0);
        return Err(Problem::Invalid(format!("has {found} bytes, but {name} needs {all}")));
    }
    Ok(Some((Packed::Lookup(lookup, apart.unwrap_or(bytes)), all)))
}

impl Packed {
    /// Adds a source that makes the blocks of `tensor`, and returns the tensor's description. If the file lacks
    /// tensor data, there is no scale, and the description has the more compact type.
    pub(super) fn add(
        self,
        sources: &mut Vec<Arc<dyn Source>>,
        tensor: &TensorInfo,
    ) -> Result<TensorInfo, FormatError> {
        let TensorInfo { ref name, ref shape, shard, offset, bytes, .. } = *tensor;
        let invalid = |cause: &str| FormatError::Invalid {
            file: sources.get(shard).map_or_else(String::new, |source| source.name().to_owned()),
            at: offset,
            what: format!("tensor {}", Quoted(name)),
            cause: cause.to_owned(),
        };
        let (Some(source), &[columns, rows]) = (sources.get(shard).cloned(), shape.as_slice()) else {
            return Err(invalid("is not a matrix"));
        };
        let too_large = invalid("has too many values");
        if offset.saturating_add(bytes) > source.bytes() {
            let described = TensorInfo::described(name, self.compact_type(columns), shape.clone());
            // With this offset, `Weights::without_data` finds that no file has the data.
            return described.map(|info| TensorInfo { offset: u64::MAX, ..info }).map_err(|_| too_large);
        }
        let scale = |at: u64| {
            let at = offset.saturating_add(at);
            let mut scale = [0; 4];
            source.read(at, &mut scale)?;
            Ok::<_, FormatError>(f32::from_le_bytes(scale))
        };
        let values = TensorBytes { source: source.clone(), offset, bytes };
        let (packing, at) = match self {
            Self::I2S(at) => (Packing::I2S, at),
            Self::Lookup(lookup, at) => (Packing::Lookup(lookup), at),
            Self::Qk256 | Self::Blocks => {
                let has_scales = matches!(self, Self::Blocks);
                let conversion = TwoBits { tensor: name.clone(), values, has_scales };
                return converted::add(sources, name.clone(), shape.clone(), conversion).ok_or(too_large);
            }
        };
        let conversion = Ternary::new(name, [columns, rows], values, packing, Some(scale(at)?))?;
        converted::add(sources, name.clone(), shape.clone(), conversion).ok_or(too_large)
    }

    /// Returns the most compact type of the blocks of rows with `columns` weights.
    fn compact_type(self, columns: u64) -> TensorType {
        match self {
            Self::Qk256 | Self::Blocks => TensorType::Q4_0,
            _ if columns.is_multiple_of(TensorType::TQ2_0.block_values() as u64) => TensorType::TQ2_0,
            _ => TensorType::F8_E4M3,
        }
    }
}
