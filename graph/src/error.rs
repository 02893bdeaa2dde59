//! Typed errors of model files. Each names the file, the position and the item that was being read.
//!
//! Text from a file is quoted, escaped and truncated (`Quoted`), because a message may reach a terminal.

use ragtag_kernels::TensorType;
use std::fmt::{self, Write};

/// Bytes of a [`Source`](crate::source::Source) that cannot be read.
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
    /// The system reports an error.
    #[error("cannot read {name}: {cause}")]
    Unreadable {
        /// Name of the source.
        name: String,
        /// The system's message.
        cause: String,
    },
}

/// A model file that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file has another format.
    #[error("{file} is not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf {
        /// The file.
        file: String,
        /// Its first four bytes, or fewer if it is shorter.
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
        /// Its version.
        version: u32,
    },
    /// The file ends early, or claims more than it has.
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
        /// The file with the second one.
        file: String,
        /// Their name.
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
        /// Name of its type.
        found: String,
    },
    /// A safetensors type that is not floating point, or has too few bits.
    #[error("{file}: tensor {tensor} has type {found}, which is not supported; supported are F32, F16, BF16")]
    UnsupportedDtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A file that is not JSON, or not of the expected form.
    #[error("{file}: {cause}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message, with line and column.
        cause: String,
    },
    /// A file above the size limit of its kind.
    #[error("{file} has {bytes} bytes; at most {most} are read")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A required file of a model's directory.
    #[error("{directory} has no {file}")]
    MissingFile {
        /// The directory.
        directory: String,
        /// The file, or the alternatives.
        file: String,
    },
    /// The index of a model's shards disagrees with them, or names something that is no file of the
    /// directory.
    #[error("{file}: {cause}")]
    Index {
        /// The index.
        file: String,
        /// Description of the problem.
        cause: String,
    },
    /// A file of a split model is missing from the list.
    #[error("{file} is missing: it is shard {number} of {count}")]
    MissingShard {
        /// Expected name.
        file: String,
        /// Its number, counted from 1.
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
    /// The metadata lacks this key.
    #[error("{file} has no metadata {key}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// Metadata of the wrong type.
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

/// An unusable vocabulary, or a text that it cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The metadata is missing or of the wrong type.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An unsupported kind of tokenizer.
    #[error("{file}: tokenizer model \"{model}\" is not supported; supported are {known}")]
    UnsupportedModel {
        /// The file.
        file: String,
        /// The kind that the file names.
        model: String,
        /// Supported kinds.
        known: &'static str,
    },
    /// A pre-tokenizer that is not in the table.
    #[error("{file}: pre-tokenizer \"{found}\" (tokenizer.ggml.pre) is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The file.
        file: String,
        /// The name in the file.
        found: String,
        /// Names in the table.
        known: String,
    },
    /// An unsupported part of a tokenizer.
    #[error("{file}: not supported: {what}")]
    Unsupported {
        /// The file.
        file: String,
        /// The part.
        what: String,
    },
    /// A vocabulary that breaks a rule.
    #[error("{file}: the vocabulary {cause}")]
    Vocabulary {
        /// The file.
        file: String,
        /// The violated rule, with the token.
        cause: String,
    },
    /// Merging a text failed.
    #[error("cannot tokenize the text: {cause}")]
    Text {
        /// Reason.
        cause: String,
    },
}

fn supported_types() -> String {
    TensorType::ALL.map(TensorType::name).join(", ")
}

/// Text from a file, escaped and truncated to 80 characters for messages.
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
