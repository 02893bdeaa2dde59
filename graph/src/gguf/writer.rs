//! Writes the header of a GGUF file, for `xtask synth-model` and tests.
//!
//! The caller adds all tensors, writes the header, and then writes the tensors' bytes in the same order.
//! After each tensor, the caller pads with zeros to the alignment ([`Writer::padding`]). The writer checks
//! nothing, because tests write invalid files.

use super::header::DEFAULT_ALIGNMENT;
use super::types::ValueType;
use ragtag_kernels::TensorType;

/// Builder for the header of a GGUF file, which contains the metadata and the tensor infos.
#[derive(Clone, Debug)]
pub struct Writer {
    alignment: u64,
    metadata_count: u64,
    metadata: Vec<u8>,
    tensor_count: u64,
    tensors: Vec<u8>,
    data_bytes: u64,
}

impl Writer {
    /// Creates a writer for a version 3 file with the default alignment.
    pub fn new() -> Self {
        Writer {
            alignment: DEFAULT_ALIGNMENT.into(),
            metadata_count: 0,
            metadata: Vec::new(),
            tensor_count: 0,
            tensors: Vec::new(),
            data_bytes: 0,
        }
    }

    /// Creates a writer that aligns tensors to `alignment` bytes, a power of two of at least 8.
    pub fn with_alignment(alignment: u32) -> Self {
        let mut writer = Self { alignment: alignment.into(), ..Self::new() };
        writer.put("general.alignment", alignment);
        writer
    }

    /// Adds a metadata entry.
    pub fn put(&mut self, key: &str, value: impl ToValue) {
        key.write(&mut self.metadata);
        value.kind().gguf_id().write(&mut self.metadata);
        value.write(&mut self.metadata);
        self.metadata_count += 1;
    }

    /// Adds the description of the next tensor, whose data takes `bytes` bytes.
    pub fn tensor(&mut self, name: &str, tensor_type: TensorType, shape: &[u64], bytes: u64) {
        name.write(&mut self.tensors);
        (shape.len() as u32).write(&mut self.tensors);
        for extent in shape {
            extent.write(&mut self.tensors);
        }
        tensor_type.gguf_id().write(&mut self.tensors);
        self.data_bytes.write(&mut self.tensors);
        self.data_bytes += bytes + self.padding(bytes);
        self.tensor_count += 1;
    }

    /// Returns the number of zeros to write after a tensor of `bytes` bytes.
    pub fn padding(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.alignment) - bytes
    }

    /// Returns the total size of all tensors in bytes, including padding.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the header, padded to the start of the first tensor.
    pub fn header(&self) -> Vec<u8> {
        let mut header = b"GGUF".to_vec();
        3u32.write(&mut header);
        self.tensor_count.write(&mut header);
        self.metadata_count.write(&mut header);
        header.extend_from_slice(&self.metadata);
        header.extend_from_slice(&self.tensors);
        let padding = self.padding(header.len() as u64);
        header.extend((0..padding).map(|_| 0));
        header
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

/// Rust type whose values can be written as metadata. Slices become arrays.
pub trait ToValue {
    /// Returns the type of the value.
    fn kind(&self) -> ValueType;

    /// Appends the value to `out` in the format of GGUF files.
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($type:ty: $kind:ident)*) => {$(
        impl ToValue for $type {
            fn kind(&self) -> ValueType {
                ValueType::$kind
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers! { u8: U8  i8: I8  u16: U16  i16: I16  u32: U32  i32: I32  f32: F32  u64: U64  i64: I64  f64: F64 }

impl ToValue for bool {
    fn kind(&self) -> ValueType {
        ValueType::Bool
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl ToValue for &str {
    fn kind(&self) -> ValueType {
        ValueType::Str
    }

    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u64).write(out);
        out.extend_from_slice(self.as_bytes());
    }
}

/// Writes a slice as an array. The element type of an empty slice is unknown, so it is written as u8.
impl<T: ToValue> ToValue for &[T] {
    fn kind(&self) -> ValueType {
        ValueType::Array
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.first().map_or(ValueType::U8, ToValue::kind).gguf_id().write(out);
        (self.len() as u64).write(out);
        for element in *self {
            element.write(out);
        }
    }
}
