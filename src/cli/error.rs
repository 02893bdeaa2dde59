//! Errors of the command: the library's errors, worded with the command's flags, and the command's own. Each kind of
//! error has an exit code.

use super::advice::worded;
use crate::selftest::FailedTests;
use ragtag_planner::plan::InvalidPlan;
use ragtag_planner::split::SplitError;
use ragtag_scheduler::sim::LoadError;
use std::path::PathBuf;

/// Result type of the command.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// An error of the command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An error of the library.
    #[error("{}", worded(.0))]
    Library(#[from] crate::Error),
    /// An invalid argument, or an argument that conflicts with other arguments or with the model.
    #[error("{0}")]
    Usage(String),
    /// A failed write to standard output. A write to a closed pipe is not an error.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    /// Failure to save calibration results.
    #[error("cannot save the calibration: {0}")]
    Unkept(String),
    /// Messages, tools or documents that are not lists of JSON objects.
    #[error("{}: {cause} (expected a JSON list of objects)", path.display())]
    Conversation { path: PathBuf, cause: String },
    /// A split that cannot be parsed.
    #[error("--split: {0}")]
    Split(#[from] SplitError),
    /// A pin that cannot be parsed.
    #[error("--pin: {0}")]
    Pin(SplitError),
    /// A pin of experts that is malformed, or that the model does not allow.
    #[error("--pin: {why}")]
    Experts {
        /// Reason for the refusal.
        why: String,
    },
    /// An override of tensors that is malformed, or that the model does not allow.
    #[error("--override-tensor: {why}")]
    Override {
        /// Reason for the refusal.
        why: String,
    },
    /// A plan file that is damaged, or made for another model or other devices.
    #[error("{}: {cause}", path.display())]
    PlanFile { path: PathBuf, cause: Box<InvalidPlan> },
    /// A plan file that requires devices that the current device options do not select.
    #[error("{}: the plan needs {}; run it with {flags}", path.display(), missing.join(", "))]
    PlanDevices { path: PathBuf, missing: Vec<String>, flags: String },
    /// A plan file with routes that no probe on this machine has verified.
    #[error("{}: {}", path.display(), findings.join("; "))]
    PlanRoutes { path: PathBuf, findings: Vec<String> },
    /// A plan from a file that needs more memory than a device has.
    #[error(
        "{}: {cause} (a plan from a file is not changed; make a new plan for the free memory, or omit --plan)",
        path.display()
    )]
    PlanMemory { path: PathBuf, cause: Box<ragtag_scheduler::Error> },
    /// A requests file that cannot be parsed.
    #[error("{}: {cause}", path.display())]
    RequestFile { path: PathBuf, cause: LoadError },
    /// A conversation that fills the context, in a chat that drops no turns.
    #[error(
        "the conversation fills the context of {context} tokens (--ctx sets a larger one, and --context-full drop drops \
         the oldest turns)"
    )]
    ContextFull { context: u32 },
    /// A self-test in which tests failed.
    #[error(transparent)]
    SelfTest(#[from] FailedTests),
    /// A server that cannot start.
    #[cfg(feature = "server")]
    #[error("{cause}{}", server_advice(.cause))]
    Server {
        #[from]
        cause: ragtag_server::Error,
    },
    /// A load that cannot start.
    #[cfg(feature = "server")]
    #[error(transparent)]
    Load(#[from] ragtag_server::LoadError),
    /// A load without a single answer.
    #[cfg(feature = "server")]
    #[error("no request was answered")]
    NoAnswers,
    /// Requests of a log that get other tokens.
    #[error("{different} of {requests} requests have other tokens than the log")]
    OtherTokens { different: usize, requests: usize },
    /// A run that `--strict` rejected, with the reasons.
    #[error("refused by --strict: {}", findings.join("; "))]
    Strict { findings: Vec<String> },
}

impl Error {
    /// Returns the exit code of the command if it fails with this error.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Library(error) => exit_code(error),
            Error::SelfTest(_) | Error::OtherTokens { .. } => 1,
            Error::Usage(_) | Error::Conversation { .. } | Error::RequestFile { .. } => 2,
            Error::ContextFull { .. } => 2,
            Error::Split(_) | Error::Pin(_) | Error::PlanFile { .. } => 4,
            Error::Experts { .. } | Error::Override { .. } => 4,
            Error::PlanDevices { .. } | Error::PlanRoutes { .. } => 4,
            Error::PlanMemory { .. } => 6,
            #[cfg(feature = "server")]
            Error::Server {
                cause: ragtag_server::Error::Open { .. } | ragtag_server::Error::Names { .. },
            } => 2,
            #[cfg(feature = "server")]
            Error::Server { .. } => 7,
            #[cfg(feature = "server")]
            Error::Load(cause) => load_exit_code(cause),
            #[cfg(feature = "server")]
            Error::NoAnswers => 1,
            Error::Output(_) | Error::Unkept(_) => 7,
            Error::Strict { .. } => 8,
        }
    }
}

/// Returns the exit code of a load that cannot start.
#[cfg(feature = "server")]
fn load_exit_code(error: &ragtag_server::LoadError) -> u8 {
    match error {
        ragtag_server::LoadError::Url { .. } => 2,
        ragtag_server::LoadError::Certificates { .. } => 7,
        _ => 1,
    }
}

/// Returns advice that follows the text of an error of the server.
#[cfg(feature = "server")]
fn server_advice(error: &ragtag_server::Error) -> &'static str {
    match error {
        ragtag_server::Error::Open { .. } => {
            " (give one with --api-key-file, or serve all clients with --insecure)"
        }
        ragtag_server::Error::Names { .. } => " (--alias sets other names)",
        ragtag_server::Error::Listen { .. } => " (--host and --port set another address)",
        _ => "",
    }
}

/// Returns the exit code of the command if it fails with this error of the library.
pub fn exit_code(error: &crate::Error) -> u8 {
    use crate::Error as E;
    use ragtag_planner::PlanError;
    use ragtag_scheduler::Error as RunError;
    match error {
        E::Usage(_) | E::NoLink | E::ThrottleSpec(_) | E::Load(_) | E::Run(RunError::Refused(_)) => 2,
        E::Model { cause, .. } if cause.is_unreadable() => 7,
        E::Tokenizer { cause, .. } if cause.is_unreadable() => 7,
        E::Model { .. } | E::Tokenizer { .. } | E::Template { .. } | E::NoTemplate { .. } => 3,
        E::Planner(
            PlanError::DoesNotFit(_)
            | PlanError::HostMemory(_)
            | PlanError::OtherHost(_)
            | PlanError::SmallCache { .. },
        ) => 6,
        E::Planner(_) | E::Split(_) | E::Simulation(_) | E::Fleet { .. } | E::NotSelected { .. } => 4,
        E::Devices(_)
        | E::Worker { .. }
        | E::UnknownDevice { .. }
        | E::DevicesOfEnvironment(_)
        | E::MemoryCap(_)
        | E::MemoryCapOfEnvironment(_) => 5,
        E::EventLog { cause: crate::ReplayError::Mismatch { .. }, .. } => 1,
        E::File { .. } | E::EventLog { .. } | E::Output(_) | E::Run(RunError::Weight { .. }) => 7,
        E::Device { cause, .. }
        | E::Run(
            RunError::Stage { cause, .. } | RunError::Device { cause, .. } | RunError::Memory { cause, .. },
        ) if cause.is_out_of_memory() => 6,
        // The library may get more kinds of errors.
        _ => 1,
    }
}
