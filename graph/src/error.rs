//! Typed errors of model files. Each error names the file and the item that could not be read.
//!
//! Text from a file is escaped and truncated (`Quoted`), because messages may be printed to a terminal.

use ragtag_kernels::TensorType;
use std::fmt::{self, Write};

/// Failure to read bytes of a [`Source`](crate::source::Source).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The range is outside the source.
    #[error("{name}: bytes {start}..{end} are outside its {bytes} bytes")]
    OutOfRange {
        /// Name of the source.
        name: String,
        /// First requested byte.
        start: u64,
        /// End of the requested bytes.
        end: u64,
        /// Size of the source.
        bytes: u64,
    },
    /// The file shrank since it was opened.
    #[error("{name} shrank while in use: it had {had} bytes and now has {has}")]
    Shrank {
        /// Name of the source.
        name: String,
        /// Size when it was opened.
        had: u64,
        /// Current size.
        has: u64,
    },
    /// The operating system reports an error.
    #[error("cannot read {name}: {cause}")]
    Unreadable {
        /// Name of the source.
        name: String,
        /// Message of the operating system.
        cause: String,
    },
}

/// Failure to parse a model file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes cannot be read.
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
    /// An unsupported version of the format.
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
        /// End of the file, or of the part that holds the item.
        bytes: u64,
    },
    /// A value that the format does not allow.
    #[error("{file}, byte {at}: {what}: {cause}")]
    Invalid {
        /// The file.
        file: String,
        /// Position of the value.
        at: u64,
        /// Item that was being read.
        what: String,
        /// The violated rule.
        cause: String,
    },
    /// Two tensors of a model have the same name.
    #[error("{file}: duplicate tensor {tensor}")]
    DuplicateTensor {
        /// The file with the second tensor.
        file: String,
        /// Name of both tensors.
        tensor: String,
    },
    /// A tensor type without kernels.
    #[error(
        "{file}: tensor {tensor} has type {found}, which is not supported; supported are {}",
        supported_types()
    )]
    UnsupportedTensorType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Name of the tensor's type.
        found: String,
    },
    /// An unsupported tensor type in a safetensors file.
    #[error("{file}: tensor {tensor} has type {found}, which is not supported; supported are F32, F16, BF16")]
    UnsupportedDtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The tensor's type.
        found: String,
    },
    /// A file that is not JSON, or that lacks the expected structure.
    #[error("{file}: {cause}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// A file that exceeds a size limit.
    #[error("{file} has {bytes} bytes; at most {most} are read")]
    TooLarge {
        /// The file.
        file: String,
        /// Size of the file.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A required file that a model's directory lacks.
    #[error("{directory} has no {file}")]
    MissingFile {
        /// The directory.
        directory: String,
        /// The missing file, or alternative files.
        file: String,
    },
    /// The index of a sharded model disagrees with its shards, or lists an invalid file name.
    #[error("{file}: {cause}")]
    Index {
        /// The index.
        file: String,
        /// Description of the problem.
        cause: String,
    },
    /// The list of files lacks a shard of a split model.
    #[error("{file} is missing: it is shard {number} of {count}")]
    MissingShard {
        /// Expected name of the shard.
        file: String,
        /// Number of the shard, counted from 1.
        number: u64,
        /// Number of shards.
        count: u64,
    },
    /// The given files do not form one split model.
    #[error("{file}: {cause}")]
    Shards {
        /// The offending file.
        file: String,
        /// Reason.
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

/// An invalid or unsupported tokenizer, or a failure to encode a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A file cannot be parsed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An unsupported kind of tokenizer.
    #[error("{file}: tokenizer model \"{model}\" is not supported; supported are {known}")]
    UnsupportedModel {
        /// The file.
        file: String,
        /// Kind of tokenizer in the file.
        model: String,
        /// Supported kinds.
        known: &'static str,
    },
    /// A pre-tokenizer that Ragtag does not know.
    #[error("{file}: pre-tokenizer \"{found}\" (tokenizer.ggml.pre) is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The file.
        file: String,
        /// Name of the pre-tokenizer.
        found: String,
        /// Names of the supported pre-tokenizers.
        known: String,
    },
    /// An unsupported part of a tokenizer.
    #[error("{file}: not supported: {what}")]
    Unsupported {
        /// The file.
        file: String,
        /// The unsupported part.
        what: String,
    },
    /// An invalid vocabulary.
    #[error("{file}: the vocabulary {cause}")]
    Vocabulary {
        /// The file.
        file: String,
        /// The violated rule, with the token.
        cause: String,
    },
    /// The tokenizer cannot encode a text.
    #[error("cannot tokenize the text: {cause}")]
    Text {
        /// Reason.
        cause: String,
    },
}

fn supported_types() -> String {
    TensorType::ALL.map(TensorType::name).join(", ")
}

/// Text from a file, escaped and truncated to 80 characters, for messages.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 80;
        for (number, character) in self.0.chars().enumerate() {
            if number == MOST {
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
