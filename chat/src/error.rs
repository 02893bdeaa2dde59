//! Errors of compiling and rendering chat templates.

use std::fmt;

/// Limit that a template exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Number of operations.
    Steps,
    /// Total size of the values that the template creates.
    ValueBytes,
    /// Size of the prompt.
    OutputBytes,
    /// Depth of nested calls and values.
    Depth,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Steps => "runs too long",
            Limit::ValueBytes => "needs too much memory",
            Limit::OutputBytes => "produces a prompt that is too long",
            Limit::Depth => "nests calls or values too deeply",
        })
    }
}

/// Error of reading JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at line {line} column {column}")]
pub struct JsonError {
    pub(crate) what: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Error of a chat template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source of the template is invalid or unsupported.
    #[error("line {line} of the chat template: {what}")]
    Syntax {
        /// Line of the template's source, from 1.
        line: u32,
        /// Description of the problem.
        what: String,
    },
    /// The template rejected the conversation: it called `raise_exception`.
    #[error("the chat template rejects the conversation: {message}")]
    Raised {
        /// Message of the template.
        message: String,
    },
    /// An operation of the template failed for this conversation.
    #[error("line {line} of the chat template: {what}")]
    Evaluation {
        /// Line of the template's source, from 1.
        line: u32,
        /// Description of the problem.
        what: String,
    },
    /// The rendering exceeded a limit.
    #[error("line {line} of the chat template: the template {limit}")]
    Limit {
        /// Line of the template's source, from 1.
        line: u32,
        /// The exceeded limit.
        limit: Limit,
    },
}

/// Result of compiling or rendering a chat template.
pub type Result<T> = std::result::Result<T, Error>;
