//! Reads the header of an untrusted safetensors file. The header is an eight-byte length and a JSON object
//! with the type, the shape and the offsets of each tensor. The tensors' data follows without gaps or
//! overlaps.
//!
//! The layout and its limits follow the format description in Hugging Face's safetensors repository.

use crate::error::{FormatError, Quoted};
use crate::json;
use crate::source::Source;
use ragtag_kernels::TensorType;
use serde::Deserialize;
use serde::de::{Error, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Size limit of the header in bytes, from the format description.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length field before the header.
const LENGTH_BYTES: u64 = 8;
/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;
/// Key of the metadata. All other keys are names of tensors.
const METADATA: &str = "__metadata__";

/// Type of the values of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    /// Values of a type without blocks.
    Values(TensorType),
    /// 8-bit floats, whose scales are another tensor.
    F8E4M3,
    /// Bytes whose meaning depends on the checkpoint.
    U8,
}

impl Dtype {
    fn bytes(self, values: u64) -> Option<u64> {
        match self {
            Dtype::Values(tensor_type) => tensor_type.bytes(values),
            Dtype::F8E4M3 | Dtype::U8 => Some(values),
        }
    }
}

/// Description of a tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Sizes of the dimensions, contiguous dimension first.
    pub(crate) shape: Vec<u64>,
    /// Index of the file.
    pub(crate) shard: usize,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Header entry of a tensor. Unknown fields are ignored, as in the reference implementation.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    /// Sizes of the dimensions, slowest dimension first.
    shape: Vec<u64>,
    /// Start and end (exclusive) of the data in bytes, relative to the end of the header.
    data_offsets: (u64, u64),
}

/// Reads and checks the header of file number `shard` of a model. Returns the tensors in the order of their
/// data.
pub(crate) fn parse(source: &dyn Source, shard: usize) -> Result<Vec<Stored>, FormatError> {
    let data = data_start(source)?;
    let header = source.range(LENGTH_BYTES..data)?;
    // Whitespace may follow the object but not precede it.
    if header.first() != Some(&b'{') {
        let found = header.first().map_or_else(|| "nothing".to_owned(), |byte| format!("byte {byte:#04x}"));
        return Err(invalid(source, LENGTH_BYTES, "the header", format!("begins with {found}, not with {{")));
    }
    let Entries(mut entries) = json::parse_slice(source.name(), &header)?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut tensors = Vec::new();
    let mut end = 0;
    for (name, entry) in &entries {
        tensors.push(tensor(source, shard, data, end, name, entry)?);
        end = entry.data_offsets.1;
    }
    let all = source.bytes() - data;
    if end < all {
        let cause = format!("{} bytes after the last tensor belong to no tensor", all - end);
        return Err(invalid(source, data + end, "the data", cause));
    }
    Ok(tensors)
}

/// Returns the file offset at which tensor data starts. Fails if the header is incomplete or exceeds the
/// limit.
fn data_start(source: &dyn Source) -> Result<u64, FormatError> {
    let cut = |what: &str, at, wanted| FormatError::Truncated {
        file: source.name().to_owned(),
        what: what.to_owned(),
        at,
        wanted,
        bytes: source.bytes(),
    };
    if source.bytes() < LENGTH_BYTES {
        return Err(cut("the length of the header", 0, LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    source.read(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        let cause = format!("{length} bytes exceed the limit of {MAX_HEADER_BYTES}");
        return Err(invalid(source, 0, "the length of the header", cause));
    }
    match LENGTH_BYTES + length {
        data if data <= source.bytes() => Ok(data),
        _ => Err(cut("the header", LENGTH_BYTES, length)),
    }
}

/// Reads and checks the entry of one tensor. The data must start at the end of the previous tensor's data.
fn tensor(
    source: &dyn Source,
    shard: usize,
    data: u64,
    expected_begin: u64,
    name: &str,
    entry: &Entry,
) -> Result<Stored, FormatError> {
    let wrong = |cause: String| invalid(source, LENGTH_BYTES, &format!("tensor {}", Quoted(name)), cause);
    let dtype = match entry.dtype.as_str() {
        "F32" => Dtype::Values(TensorType::F32),
        "F16" => Dtype::Values(TensorType::F16),
        "BF16" => Dtype::Values(TensorType::BF16),
        "F8_E4M3" => Dtype::F8E4M3,
        "U8" => Dtype::U8,
        other => {
            return Err(FormatError::UnsupportedDtype {
                file: source.name().to_owned(),
                tensor: Quoted(name).to_string(),
                found: Quoted(other).to_string(),
            });
        }
    };
    if entry.shape.len() > MAX_DIMENSIONS {
        return Err(wrong(format!("{} dimensions exceed the limit of {MAX_DIMENSIONS}", entry.shape.len())));
    }
    if entry.shape.contains(&0) {
        return Err(wrong(format!("an extent of the shape {:?} is zero", entry.shape)));
    }
    let values = entry.shape.iter().try_fold(1u64, |values, extent| values.checked_mul(*extent));
    let bytes = values.and_then(|values| dtype.bytes(values));
    let bytes = bytes.ok_or_else(|| wrong(format!("the shape {:?} is larger than any file", entry.shape)))?;
    let (begin, end) = entry.data_offsets;
    if begin.checked_add(bytes) != Some(end) {
        let cause = format!("its shape takes {bytes} bytes, its data lies from {begin} to {end}");
        return Err(wrong(cause));
    }
    if begin != expected_begin {
        let what = if begin > expected_begin { "leaves a hole" } else { "overlaps another tensor" };
        return Err(wrong(format!("its data {what}: it begins at {begin} instead of {expected_begin}")));
    }
    let offset = data.checked_add(begin).ok_or_else(|| wrong("lies beyond any file".to_owned()))?;
    if offset.checked_add(bytes).is_none_or(|end| end > source.bytes()) {
        return Err(FormatError::Truncated {
            file: source.name().to_owned(),
            what: format!("the data of tensor {}", Quoted(name)),
            at: offset,
            wanted: bytes,
            bytes: source.bytes(),
        });
    }
    let shape = entry.shape.iter().rev().copied().collect();
    Ok(Stored { name: name.to_owned(), dtype, shape, shard, offset, bytes })
}

fn invalid(source: &dyn Source, at: u64, what: &str, cause: String) -> FormatError {
    FormatError::Invalid { file: source.name().to_owned(), at, what: what.to_owned(), cause }
}

/// Tensor entries of the header object. Duplicate keys are errors.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("the key {key} occurs twice")));
                    }
                    if key == METADATA {
                        // The metadata must be a map of strings. Its content does not affect the weights.
                        map.next_value::<BTreeMap<String, String>>()?;
                    } else {
                        entries.push((key, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}
