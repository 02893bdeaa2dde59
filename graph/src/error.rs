//! What can be wrong with a file: typed, with the file, the place and the thing that was being read.
//!
//! Text that comes from a file is shown quoted, escaped and cut (`Quoted`): an error message may end up on a terminal.

use ragtag_kernels::TensorType;
use std::fmt::{self, Write};

/// Bytes of a [`Source`](crate::source::Source) that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The range lies outside of the source.
    #[error("{name}: bytes {start}..{end} lie outside of its {bytes} bytes")]
    OutOfRange {
        /// Name of the source.
        name: String,
        /// First byte asked for.
        start: u64,
        /// End of the bytes asked for.
        end: u64,
        /// Size of the source.
        bytes: u64,
    },
    /// The file lost bytes since it was opened.
    #[error("{name} shrank while in use: it had {had} bytes and now has {has}")]
    Shrank {
        /// Name of the source.
        name: String,
        /// Bytes when it was opened.
        had: u64,
        /// Bytes now.
        has: u64,
    },
    /// The system refuses.
    #[error("{name} cannot be read: {cause}")]
    Unreadable {
        /// Name of the source.
        name: String,
        /// The system's words.
        cause: String,
    },
}

/// A model file that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes cannot be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file is something else.
    #[error("{file} is not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf {
        /// The file.
        file: String,
        /// Its first four bytes, or as many as it has.
        found: Vec<u8>,
    },
    /// The numbers of the file are written in the other byte order.
    #[error("{file} is a big-endian GGUF file; only little-endian files are supported")]
    BigEndian {
        /// The file.
        file: String,
    },
    /// A version of the format that is not supported.
    #[error("{file} has GGUF version {version}; versions 2 and 3 are supported")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// The file ends too early, or claims more than it has.
    #[error(
        "{file} ends at byte {bytes}, but {what} needs {wanted} bytes from byte {at}: the file is cut, or lies"
    )]
    Truncated {
        /// The file.
        file: String,
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
        /// Bytes that it needs.
        wanted: u64,
        /// Where the file, or the part that holds it, ends.
        bytes: u64,
    },
    /// A value that the format does not allow.
    #[error("{file}, byte {at}: {what}: {cause}")]
    Invalid {
        /// The file.
        file: String,
        /// Where it stands.
        at: u64,
        /// What was being read.
        what: String,
        /// The rule it breaks.
        cause: String,
    },
    /// Two tensors of a model have one name.
    #[error("{file}: there is another tensor {tensor}")]
    DuplicateTensor {
        /// The file with the second one.
        file: String,
        /// Their name.
        tensor: String,
    },
    /// A tensor type that has no kernels.
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
    /// A type of a safetensors file that is none of floating point, or of too few bits.
    #[error("{file}: tensor {tensor} has type {found}, which is not supported; supported are F32, F16, BF16")]
    UnsupportedDtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A file of JSON that is none, or is of another form.
    #[error("{file}: {cause}")]
    Json {
        /// The file.
        file: String,
        /// What the reader says, with line and column.
        cause: String,
    },
    /// A file that is larger than any of its kind.
    #[error("{file} has {bytes} bytes; at most {most} are read")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A file that a model's directory must have.
    #[error("{directory} has no {file}")]
    MissingFile {
        /// The directory.
        directory: String,
        /// The file, or the files of which one must be there.
        file: String,
    },
    /// The index of a model's shards does not agree with them, or names what is no file of the directory.
    #[error("{file}: {cause}")]
    Index {
        /// The index.
        file: String,
        /// What is wrong.
        cause: String,
    },
    /// One file of a split model is not among those given.
    #[error("{file} is missing: it is shard {number} of {count}")]
    MissingShard {
        /// Name that it should have.
        file: String,
        /// Its number, from 1.
        number: u64,
        /// Shards in all.
        count: u64,
    },
    /// The files given do not make up one split model.
    #[error("{file}: {cause}")]
    Shards {
        /// The file that does not fit.
        file: String,
        /// Why.
        cause: String,
    },
    /// No metadata under this key.
    #[error("{file} has no metadata {key}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// Metadata of another type.
    #[error("{file}: metadata {key} should be {expected}, but is {found}")]
    WrongType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
}

/// A vocabulary that cannot be used, or a text that it cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The metadata is missing or of the wrong type.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A kind of tokenizer that is not supported.
    #[error("{file}: tokenizer model \"{model}\" is not supported; supported are {known}")]
    UnsupportedModel {
        /// The file.
        file: String,
        /// What it names.
        model: String,
        /// Those that are supported.
        known: &'static str,
    },
    /// A way of cutting text into words that is not in the table.
    #[error("{file}: pre-tokenizer \"{found}\" (tokenizer.ggml.pre) is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The file.
        file: String,
        /// What it names.
        found: String,
        /// Those of the table.
        known: String,
    },
    /// A part of a tokenizer that is not supported.
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
        /// The rule, with the token.
        cause: String,
    },
    /// The merging of a text failed.
    #[error("the text cannot be tokenized: {cause}")]
    Text {
        /// Why.
        cause: String,
    },
}

fn supported_types() -> String {
    TensorType::ALL.map(TensorType::name).join(", ")
}

/// Text of a file as it may stand in a message: escaped, and cut after 80 characters.
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
    fn text_of_a_file_is_escaped_and_cut() {
        assert_eq!(quoted("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(quoted("\u{1b}[2J\n"), "\\u{1b}[2J\\n");
        assert_eq!(quoted(&"x".repeat(81)), format!("{}…", "x".repeat(80)));
    }
}
