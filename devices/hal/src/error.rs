//! Device errors, as types that callers can match on.

use crate::ids::{DeviceId, Point};
use serde::{Deserialize, Serialize};

/// Result of a call to a device.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call or submission. The type is `Clone`, because a failed timeline reports its error to every
/// waiter.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The device has too little memory for an allocation.
    #[error("out of device memory: {wanted} bytes wanted, {} free", free.map_or("unknown".into(), |f| f.to_string()))]
    OutOfMemory {
        /// Requested bytes.
        wanted: u64,
        /// Free bytes, if the device reports them.
        free: Option<u64>,
    },
    /// The allocation exceeds the device's limit for one allocation, regardless of free memory.
    #[error(
        "out of device memory: {wanted} bytes wanted in one piece, the largest single allocation is {largest}"
    )]
    AllocationTooLarge {
        /// Requested bytes.
        wanted: u64,
        /// Size limit of a single allocation in bytes.
        largest: u64,
    },
    /// The device is lost. None of its resources can be used again.
    #[error("device lost: {cause}")]
    Lost {
        /// Cause as the driver reports it.
        cause: String,
    },
    /// The owner has closed the device. The outcome of outstanding work is no longer reported.
    #[error("device closed: {cause}")]
    Closed {
        /// Reason why the device was closed.
        cause: String,
    },
    /// A kernel did not compile.
    #[error("kernel does not compile: {log}")]
    Compile {
        /// The compiler's log.
        log: String,
    },
    /// The device or the API does not support the request.
    #[error("not supported: {what}")]
    Unsupported {
        /// The unsupported request.
        what: String,
    },
    /// An API call failed with a code that no other variant covers.
    #[error("{call} failed with code {code}")]
    Api {
        /// API function.
        call: String,
        /// Return code.
        code: i64,
    },
    /// The caller broke the contract: unknown ID, range outside a buffer, wrong arity, wrong access.
    #[error("invalid use: {what}")]
    Invalid {
        /// The broken rule and the offending values.
        what: String,
    },
    /// The driver refused a copy before it enqueued any of it. The queue and its timeline remain usable.
    #[error("the driver refused the copy: {cause}")]
    Refused {
        /// Error that the driver reported.
        cause: Box<Error>,
    },
    /// The timeline of an awaited point failed before it reached the point.
    #[error("{point} failed: {cause}")]
    Poisoned {
        /// The awaited point.
        point: Point,
        /// First failure of the timeline.
        cause: Box<Error>,
    },
}

impl Error {
    /// Returns an [`Error::Invalid`] with the text `what`.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// Returns the error of an API call that returned `code`. `name` is the API's name for the code.
    /// `is_lost` states whether the code means that the device is lost.
    pub fn of_call(call: &str, code: i64, name: Option<&str>, is_lost: bool) -> Self {
        let call = name.map_or_else(|| call.to_string(), |name| format!("{call} ({name})"));
        match is_lost {
            true => Error::Lost { cause: format!("{call} failed with code {code}") },
            false => Error::Api { call, code },
        }
    }

    /// Converts an [`Error::Api`] whose code satisfies `is_shortage` to [`Error::OutOfMemory`] for an
    /// allocation of `wanted` bytes. Returns any other error unchanged.
    pub fn or_shortage(self, is_shortage: impl FnOnce(i64) -> bool, wanted: u64) -> Self {
        match self {
            Error::Api { code, .. } if is_shortage(code) => Error::OutOfMemory { wanted, free: None },
            other => other,
        }
    }

    /// Returns true if a smaller allocation might have succeeded.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.root(), Error::OutOfMemory { .. } | Error::AllocationTooLarge { .. })
    }

    /// Converts an [`Error::Api`] or [`Error::Unsupported`] of a copy to [`Error::Refused`]. Nothing of the copy
    /// may have been enqueued. Returns any other error unchanged.
    pub fn refusing_copy(self) -> Self {
        match self {
            Error::Api { .. } | Error::Unsupported { .. } => Error::Refused { cause: Box::new(self) },
            other => other,
        }
    }

    /// Returns the root cause of a chain of failed waits, or of a refused copy.
    pub fn root(&self) -> &Error {
        match self {
            Error::Poisoned { cause, .. } | Error::Refused { cause } => cause.root(),
            other => other,
        }
    }

    /// Returns the device on which a chain of failed waits began. `None` if no wait has failed.
    pub fn culprit(&self) -> Option<DeviceId> {
        match self {
            Error::Poisoned { point, cause } => Some(cause.culprit().unwrap_or(point.timeline.device)),
            _ => None,
        }
    }
}

/// Reason why a backend has no adapters: its library or driver is missing or broken.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("{cause} (tried {})", if tried.is_empty() { "nothing".into() } else { tried.join(", ") })]
pub struct Unavailable {
    /// Libraries or paths that were tried.
    pub tried: Vec<String>,
    /// Text that describes the cause.
    pub cause: String,
}
