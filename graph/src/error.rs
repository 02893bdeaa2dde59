//! Typed errors for model files and models. Each error names the file and the item that Ragtag could not read.
//!
//! `Quoted` escapes and truncates text from a file, because messages may be printed to a terminal.

use ragtag_kernels::blocks::SizeError;
use ragtag_kernels::kv::QUANTISED_DIMENSIONS;
use ragtag_kernels::layout::LayoutError;
use ragtag_kernels::{Kernel, KvType, TensorType};
use std::fmt::{self, Write};

/// Failure to read bytes from a [`Source`](crate::source::Source).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The range is outside the source.
    #[error("{name}: bytes {start}..{end} are outside its {bytes} bytes")]
    OutOfRange {
        /// Name of the source.
        name: String,
        /// First requested byte.
        start: u64,
        /// End of the requested range (exclusive).
        end: u64,
        /// Size of the source in bytes.
        bytes: u64,
    },
    /// The file shrank since it was opened.
    #[error(
        "{name} shrank while in use: it had {had} bytes and now has {has} (start again when the file is complete)"
    )]
    Shrank {
        /// Name of the source.
        name: String,
        /// Size in bytes when the source was opened.
        had: u64,
        /// Current size in bytes.
        has: u64,
    },
    /// Another process has written to the file since it was opened.
    #[error("{name} changed while in use (start again when nothing writes to it)")]
    Changed {
        /// Name of the source.
        name: String,
    },
    /// The file contains a value that a tensor cannot have.
    #[error("{name}: tensor {tensor}: {cause}")]
    Content {
        /// Name of the source.
        name: String,
        /// Name of the tensor in the file.
        tensor: String,
        /// Description of the problem.
        cause: String,
    },
    /// The operating system reported an error.
    #[error("cannot read {name}: {cause}")]
    Unreadable {
        /// Name of the source.
        name: String,
        /// Error message from the operating system.
        cause: String,
    },
}

impl SourceError {
    /// Returns whether the file could not be read or has changed, so that its content is unknown.
    fn is_unreadable(&self) -> bool {
        matches!(self, Self::Shrank { .. } | Self::Changed { .. } | Self::Unreadable { .. })
    }
}

/// Failure to parse a model file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file's bytes cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file is not a GGUF file.
    #[error("{file} is not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf {
        /// The file.
        file: String,
        /// First four bytes of the file, or all bytes of a shorter file.
        found: Vec<u8>,
    },
    /// The file has big-endian byte order.
    #[error("{file} is a big-endian GGUF file; only little-endian files are supported")]
    BigEndian {
        /// The file.
        file: String,
    },
    /// The file has an unsupported version of the format.
    #[error("{file} has GGUF version {version}; versions 2 and 3 are supported")]
    Version {
        /// The file.
        file: String,
        /// Version of the file.
        version: u32,
    },
    /// The file ends early, or contains a length that exceeds its size.
    #[error(
        "{file} ends at byte {bytes}, but {what} needs {wanted} bytes from byte {at}: the file is truncated or corrupt"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Item that was being read.
        what: String,
        /// First byte of the item.
        at: u64,
        /// Bytes that the item needs.
        wanted: u64,
        /// End of the file, or end of the region that must contain the item.
        bytes: u64,
    },
    /// The file contains a value that the format does not allow.
    #[error("{file}, byte {at}: {what}: {cause}")]
    Invalid {
        /// The file.
        file: String,
        /// Byte offset of the value in the file.
        at: u64,
        /// Item that was being read.
        what: String,
        /// Rule that the value violates.
        cause: String,
    },
    /// Two tensors of a model have the same name.
    #[error("{file}: duplicate tensor {tensor}")]
    DuplicateTensor {
        /// The file that contains the second tensor.
        file: String,
        /// The duplicate name.
        tensor: String,
    },
    /// Ragtag has no kernels for the type of a GGUF tensor.
    #[error(
        "{file}: tensor {tensor} has type {found}, which is not supported; supported are {}",
        supported_types()
    )]
    UnsupportedTensorType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Name of the tensor type.
        found: String,
    },
    /// A tensor in a safetensors file has an unsupported type.
    #[error(
        "{file}: tensor {tensor} has type {found}, which is not supported; supported are F32, F16, BF16, F8_E4M3, U8"
    )]
    UnsupportedDtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The tensor's type, as the file spells it.
        found: String,
    },
    /// The file is not JSON, or lacks the expected structure.
    #[error("{file}: {cause}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// The file exceeds a size limit.
    #[error("{file} has {bytes} bytes; at most {most} are read")]
    TooLarge {
        /// The file.
        file: String,
        /// Size of the file in bytes.
        bytes: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// A required file is missing from a model directory.
    #[error("{directory} has no {file}")]
    MissingFile {
        /// The directory.
        directory: String,
        /// Name of the missing file, or the names of several files if any one of them suffices.
        file: String,
    },
    /// The index of a sharded model disagrees with its shards, or lists an invalid file name.
    #[error("{file}: {cause}")]
    Index {
        /// The index file.
        file: String,
        /// Description of the problem.
        cause: String,
    },
    /// A shard is missing from the given files of a split model.
    #[error("{file} is missing: it is shard {number} of {count}")]
    MissingShard {
        /// Expected name of the shard.
        file: String,
        /// Number of the missing shard, counted from 1.
        number: u64,
        /// Number of shards in the model.
        count: u64,
    },
    /// The given files do not form one split model.
    #[error("{file}: {cause}")]
    Shards {
        /// The offending file.
        file: String,
        /// Description of the problem.
        cause: String,
    },
    /// The metadata lacks a required key.
    #[error("{file} has no metadata {key}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A metadata value has the wrong type.
    #[error("{file}: metadata {key} should be {expected}, but is {found}")]
    WrongType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Expected type.
        expected: &'static str,
        /// Type and value found.
        found: String,
    },
}

impl FormatError {
    fn is_unreadable(&self) -> bool {
        matches!(self, Self::Source(source) if source.is_unreadable())
    }
}

/// Failure to load a tokenizer or to encode text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A file cannot be parsed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file contains an unsupported kind of tokenizer.
    #[error("{file}: tokenizer model \"{model}\" is not supported; supported are {known}")]
    UnsupportedModel {
        /// The file.
        file: String,
        /// Kind of tokenizer in the file.
        model: String,
        /// Supported kinds.
        known: String,
    },
    /// Ragtag does not know the pre-tokenizer.
    #[error("{file}: pre-tokenizer \"{found}\" (tokenizer.ggml.pre) is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The file.
        file: String,
        /// Name of the pre-tokenizer.
        found: String,
        /// Names of the supported pre-tokenizers.
        known: String,
    },
    /// The tokenizer has an unsupported component.
    #[error("{file}: not supported: {what}")]
    Unsupported {
        /// The file.
        file: String,
        /// The unsupported component.
        what: String,
    },
    /// The vocabulary is invalid.
    #[error("{file}: the vocabulary {cause}")]
    Vocabulary {
        /// The file.
        file: String,
        /// The violated rule and the offending token.
        cause: String,
    },
    /// The tokenizer cannot encode a given text.
    #[error("cannot tokenize the text: {cause}")]
    Text {
        /// Description of the problem.
        cause: String,
    },
}

/// Reason why Ragtag cannot run a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The context is longer than the model supports without its indexer.
    #[error(
        "a context of {context} tokens is not supported: beyond {most} tokens, the model needs its indexer (choose a context of at most {most})"
    )]
    Context {
        /// Number of tokens.
        context: u32,
        /// Largest supported number.
        most: u32,
    },
    /// A model file cannot be parsed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Ragtag does not support the architecture.
    #[error("architecture {name:?} is not supported; supported are {known}")]
    Architecture {
        /// Name of the architecture in the file.
        name: String,
        /// Names of the supported architectures.
        known: String,
    },
    /// A hyperparameter is invalid.
    #[error("{key}: {why}")]
    Hyperparameter {
        /// Key of the hyperparameter.
        key: String,
        /// Description of the problem.
        why: String,
    },
    /// A required tensor is missing.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The file contains a tensor that the architecture does not use. Running the model without this tensor
    /// would give wrong results.
    #[error(
        "tensor {name} is not part of this architecture as Ragtag knows it; running without it would be wrong"
    )]
    UnknownTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The metadata contains a key that the architecture does not use. Running the model without it might
    /// give wrong results.
    #[error(
        "key {key} is not part of this architecture as Ragtag knows it; running without it might be wrong"
    )]
    UnknownKey {
        /// Name of the key.
        key: String,
    },
    /// The shape of a tensor disagrees with the hyperparameters.
    #[error("tensor {name} has shape {found:?}; the hyperparameters ask for {expected:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Expected shape, row length first.
        expected: Vec<u64>,
        /// Shape in the file.
        found: Vec<u64>,
    },
    /// The data of a tensor is missing from the file.
    #[error("tensor {name} has no data: this model can be planned but not run")]
    NoData {
        /// Name of the tensor.
        name: String,
    },
    /// The directory of a quantized model has no weights, which would have the types of the matrices.
    #[error("not supported: quantization_config in {file} without weights: choose a type for all matrices")]
    UntypedMatrices {
        /// Name of the file that describes the quantization.
        file: &'static str,
    },
    /// A KV cache type does not support the model's heads.
    #[error(
        "a {kv} KV cache needs heads of a multiple of {QUANTISED_DIMENSIONS} dimensions, and the model's heads have \
         {head_dimensions} (use f16 or f32)"
    )]
    KvType {
        /// The requested type.
        kv: KvType,
        /// Number of dimensions of the model's heads.
        head_dimensions: u32,
    },
    /// The model has a feature that Ragtag does not support.
    #[error("not supported: {what}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
    },
}

impl TokenizerError {
    /// Returns whether a file could not be read or has changed, so that its content is unknown.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Format(format) if format.is_unreadable())
    }
}

impl ModelError {
    /// Returns whether a file could not be read or has changed, so that its content is unknown.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Format(format) if format.is_unreadable())
    }
}

/// Reason why segments cannot be compiled for a device.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No variant of a kernel runs on the device.
    #[error("the device has no variant of kernel {kernel}")]
    Kernel {
        /// The kernel.
        kernel: Kernel,
    },
    /// No weight buffer of the stage holds a weight that a kernel reads.
    #[error("no buffer of the stage holds the weight {name}")]
    Weight {
        /// Name of the weight's buffer.
        name: String,
    },
    /// The kernel variants selected for the device are written in more than one language.
    #[error("the kernels for the device are in several languages")]
    Languages,
    /// A buffer exceeds the device's limit.
    #[error("{what} takes {bytes} bytes; the device allows {limit} in one piece")]
    TooLarge {
        /// Description of the buffer.
        what: String,
        /// Size of the buffer in bytes.
        bytes: u64,
        /// The device's limit in bytes.
        limit: u64,
    },
}

impl From<SizeError> for ModelError {
    fn from(error: SizeError) -> Self {
        ModelError::Unsupported { what: error.to_string() }
    }
}

impl From<LayoutError> for ModelError {
    fn from(error: LayoutError) -> Self {
        ModelError::Unsupported { what: error.to_string() }
    }
}

fn supported_types() -> String {
    TensorType::in_gguf().map(TensorType::name).collect::<Vec<_>>().join(", ")
}

/// Text from a file. Messages show it escaped and truncated to 80 characters.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARACTERS: usize = 80;
        for (number, character) in self.0.chars().enumerate() {
            if number == MAX_CHARACTERS {
                return f.write_char('…');
            }
            write!(f, "{}", character.escape_debug())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Quoted;

    fn quoted(text: &str) -> String {
        Quoted(text).to_string()
    }

    #[test]
    fn text_from_a_file_is_escaped_and_truncated() {
        assert_eq!(quoted("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(quoted("\u{1b}[2J\n"), "\\u{1b}[2J\\n");
        assert_eq!(quoted(&"x".repeat(81)), format!("{}…", "x".repeat(80)));
    }
}
