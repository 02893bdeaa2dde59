//! Reads the version, the metadata and the tensor infos of one GGUF file.

use super::bitnet::{self, Packed};
use super::metadata::{self, Entry, Metadata};
use super::reader::Reader;
use super::types::{ValueType, tensor_type_name};
use crate::error::{FormatError, Quoted};
use crate::source::Source;
use crate::weights::{TensorInfo, stored_bytes};
use ragtag_kernels::TensorType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Default alignment of tensor data, in bytes.
pub(super) const DEFAULT_ALIGNMENT: u32 = 32;
/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Maximum length of a tensor name in bytes, from the specification.
const MAX_NAME_BYTES: usize = 64;

/// Bytes that are read first. If the header is longer, [`GROWTH`] times as many bytes are read.
const FIRST_BYTES: u64 = 1 << 20;
const GROWTH: u64 = 4;
/// Maximum size of a header. Vocabularies of 262,144 tokens take 8 MiB.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Contents of a GGUF file before its tensor data.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    /// Packings of tensors of BitNet models, by their names. The descriptions of these tensors have the size in
    /// the file, and no meaningful type.
    pub(super) packed: HashMap<String, Packed>,
}

/// Reads and checks the header of file number `shard` of a model. If `whole` is set, the file must also
/// contain the tensor data.
pub(super) fn parse(source: &Arc<dyn Source>, shard: usize, whole: bool) -> Result<Header, FormatError> {
    let (file, mut bytes, mut first) = (source.bytes(), FIRST_BYTES, Vec::new());
    loop {
        let start = first.len();
        first.resize(bytes.min(file) as usize, 0);
        source.read(start as u64, &mut first[start..])?;
        let (what, at, wanted) = match parse_first(&first, source, shard, whole) {
            Err(FormatError::Truncated { what, at, wanted, .. }) => (what, at, wanted),
            Err(error) => return Err(error),
            Ok((entries, tensors, packed)) => {
                // Nothing else reads these bytes.
                first.truncate(entries.values().map(|entry| entry.range.end).max().unwrap_or(0) as usize);
                first.shrink_to_fit();
                return Ok(Header {
                    metadata: Metadata::new(source.name(), first, entries),
                    tensors,
                    packed,
                });
            }
        };
        let end = at.checked_add(wanted).filter(|end| *end <= file && bytes < file);
        let Some(end) = end else {
            return Err(FormatError::Truncated { file: source.name().into(), what, at, wanted, bytes: file });
        };
        if end > MAX_HEADER_BYTES {
            let cause = format!("ends at byte {end}, and headers have at most {MAX_HEADER_BYTES} bytes");
            return Err(FormatError::Invalid { file: source.name().into(), at, what, cause });
        }
        bytes = bytes.saturating_mul(GROWTH).clamp(end, MAX_HEADER_BYTES);
    }
}

/// Metadata, tensors and packings of a header.
type Parsed = (BTreeMap<String, Entry>, Vec<TensorInfo>, HashMap<String, Packed>);

/// Parses the header from the first bytes of a file. Fails with [`FormatError::Truncated`] if they are too
/// few.
fn parse_first(
    first: &[u8],
    source: &Arc<dyn Source>,
    shard: usize,
    whole: bool,
) -> Result<Parsed, FormatError> {
    let mut reader = Reader::new(source.name(), 0, first);
    magic_and_version(&mut reader)?;
    let tensor_count = reader.u64(format_args!("the number of tensors"))?;
    let metadata_count = reader.u64(format_args!("the number of metadata entries"))?;
    let entries = metadata_entries(&mut reader, metadata_count)?;
    let alignment = alignment(source.name(), first, &entries)?;

    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut numbers = Vec::new();
    // Each iteration reads more than twenty bytes, so the number of bytes bounds the loop.
    for number in 0..tensor_count {
        let (tensor, type_id) = tensor_info(&mut reader, number, tensor_count, alignment, shard)?;
        tensors.push(tensor);
        numbers.push(type_id);
    }
    let packed = bitnet::find(&mut tensors, &numbers, &reader, alignment, whole.then(|| source.bytes()))?;
    place(&mut tensors, &reader, alignment, if whole { source.bytes() } else { u64::MAX })?;
    Ok((entries, tensors, packed))
}

fn magic_and_version(reader: &mut Reader<'_>) -> Result<(), FormatError> {
    const MAGIC: &[u8] = b"GGUF";
    let file = reader.file();
    let mut peek = reader.clone();
    let magic = match peek.take(4, format_args!("the magic number")) {
        Ok(magic) => magic,
        // A file that holds only a prefix of the magic number is truncated. Any other file is in a different
        // format.
        Err(cut) => {
            let mut found = Vec::new();
            while let Ok(byte) = reader.take(1, format_args!("")) {
                found.extend_from_slice(byte);
            }
            return Err(if MAGIC.starts_with(&found) {
                cut
            } else {
                FormatError::NotGguf { file: file.into(), found }
            });
        }
    };
    if magic != MAGIC {
        return Err(FormatError::NotGguf { file: file.into(), found: magic.to_vec() });
    }
    *reader = peek;
    match reader.u32(format_args!("the version"))? {
        2 | 3 => Ok(()),
        // The magic number reads the same in either byte order. The version is the first number that does
        // not.
        version if version.swap_bytes() <= 0xffff && version > 0xffff => {
            Err(FormatError::BigEndian { file: file.into() })
        }
        version => Err(FormatError::Version { file: file.into(), version }),
    }
}

fn metadata_entries(reader: &mut Reader<'_>, count: u64) -> Result<BTreeMap<String, Entry>, FormatError> {
    let mut entries = BTreeMap::new();
    for number in 0..count {
        let at = reader.at();
        let key = reader.string(format_args!("the key of metadata entry {number} of {count}"))?;
        let kind = reader.value_type(format_args!("the value type of metadata {}", Quoted(key)))?;
        let start = reader.at();
        reader.value(kind, key)?;
        if entries.insert(key.to_owned(), Entry { kind, range: start..reader.at() }).is_some() {
            let what = format_args!("the key of metadata entry {number}");
            return Err(reader.invalid(at, what, format!("{} occurs twice", Quoted(key))));
        }
    }
    Ok(entries)
}

/// Returns the alignment of tensor data in bytes. Requires a power of two of at least 8. The specification
/// requires only a multiple of 8, but all known implementations use powers of two.
fn alignment(file: &str, first: &[u8], entries: &BTreeMap<String, Entry>) -> Result<u64, FormatError> {
    let alignment = metadata::find::<u32>(file, first, entries, "general.alignment")?;
    let alignment = alignment.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment < 8 || !alignment.is_power_of_two() {
        return Err(FormatError::WrongType {
            file: file.to_owned(),
            key: "general.alignment".to_owned(),
            expected: "a power of two of at least 8",
            found: format!("{} {alignment}", ValueType::U32.name()),
        });
    }
    Ok(alignment.into())
}

/// Reads one tensor info, and the number of its type. The offset in the result is relative to the start of the
/// tensor data.
fn tensor_info(
    reader: &mut Reader<'_>,
    number: u64,
    count: u64,
    alignment: u64,
    shard: usize,
) -> Result<(TensorInfo, u32), FormatError> {
    let at = reader.at();
    let name = reader.string(format_args!("the name of tensor {number} of {count}"))?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let cause = format!("has {} bytes, where 1 to {MAX_NAME_BYTES} are allowed", name.len());
        return Err(reader.invalid(at, format_args!("the name of tensor {number}"), cause));
    }
    let shown = Quoted(name);
    let shape = shape(reader, &shown)?;

    let type_id = reader.u32(format_args!("the type of tensor {shown}"))?;
    let is_packed = bitnet::is_packed(type_id);
    let tensor_type = TensorType::from_gguf_id(if is_packed { TensorType::TQ2_0.gguf_id() } else { type_id })
        .ok_or_else(|| FormatError::UnsupportedTensorType {
            file: reader.file().to_owned(),
            tensor: shown.to_string(),
            found: tensor_type_name(type_id).map_or_else(|| format!("number {type_id}"), str::to_owned),
        })?;
    let bytes = if is_packed { Ok(0) } else { stored_bytes(tensor_type, &shape) };
    let bytes = bytes
        .map_err(|cause| reader.invalid(at, format_args!("the shape {shape:?} of tensor {shown}"), cause))?;

    let at = reader.at();
    let offset = reader.u64(format_args!("the offset of tensor {shown}"))?;
    if !offset.is_multiple_of(alignment) {
        let cause = format!("{offset} is not a multiple of the alignment, {alignment}");
        return Err(reader.invalid(at, format_args!("the offset of tensor {shown}"), cause));
    }
    Ok((TensorInfo { name: name.to_owned(), tensor_type, shape, shard, offset, bytes }, type_id))
}

fn shape(reader: &mut Reader<'_>, tensor: &Quoted<'_>) -> Result<Vec<u64>, FormatError> {
    let at = reader.at();
    let dimensions = reader.u32(format_args!("the number of dimensions of tensor {tensor}"))?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let cause = format!("{dimensions} is not 1 to {MAX_DIMENSIONS}");
        return Err(reader.invalid(at, format_args!("the number of dimensions of tensor {tensor}"), cause));
    }
    let mut shape = Vec::new();
    for dimension in 0..dimensions {
        let at = reader.at();
        let extent = reader.u64(format_args!("dimension {dimension} of tensor {tensor}"))?;
        if extent == 0 {
            return Err(reader.invalid(
                at,
                format_args!("dimension {dimension} of tensor {tensor}"),
                "is zero",
            ));
        }
        shape.push(extent);
    }
    Ok(shape)
}

/// Converts tensor offsets to file offsets, and checks that all tensor data ends within the first `bytes`
/// bytes of the file.
fn place(
    tensors: &mut [TensorInfo],
    reader: &Reader<'_>,
    alignment: u64,
    bytes: u64,
) -> Result<(), FormatError> {
    for tensor in tensors {
        let data = reader.at().checked_next_multiple_of(alignment);
        let at = data.and_then(|data| data.checked_add(tensor.offset));
        let Some((at, end)) = at.and_then(|at| Some((at, at.checked_add(tensor.bytes)?))) else {
            let what = format_args!("the data of tensor {}", Quoted(&tensor.name));
            let cause =
                format!("{} bytes from offset {}: that is larger than any file", tensor.bytes, tensor.offset);
            return Err(reader.invalid(reader.at(), what, cause));
        };
        if end > bytes {
            return Err(FormatError::Truncated {
                file: reader.file().to_owned(),
                what: format!("the data of tensor {}", Quoted(&tensor.name)),
                at,
                wanted: tensor.bytes,
                bytes,
            });
        }
        tensor.offset = at;
    }
    Ok(())
}
