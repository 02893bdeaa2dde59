//! What can go wrong on a device, as types that callers act upon.

use crate::ids::Point;
use serde::{Deserialize, Serialize};

/// Result of a call to a device.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call or submission. `Clone`, because a poisoned timeline tells everyone who waits.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The device cannot hold an allocation.
    #[error("out of device memory: {wanted} bytes wanted, {} free", free.map_or("unknown".into(), |f| f.to_string()))]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that the device reports free, where it reports any.
        free: Option<u64>,
    },
    /// One allocation is larger than the device makes any, however much memory is free.
    #[error(
        "out of device memory: {wanted} bytes wanted in one piece, the largest single allocation is {largest}"
    )]
    AllocationTooLarge {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the largest single allocation.
        largest: u64,
    },
    /// The device is gone; nothing on it can be used again.
    #[error("device lost: {cause}")]
    Lost {
        /// The driver's words.
        cause: String,
    },
    /// Whoever owned the device has ended; nobody waits for what it still does.
    #[error("device closed: {cause}")]
    Closed {
        /// Why.
        cause: String,
    },
    /// A kernel did not compile.
    #[error("kernel does not compile: {log}")]
    Compile {
        /// The compiler's log.
        log: String,
    },
    /// The device or the API cannot do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// An API call failed in a way that has no better name.
    #[error("{call} failed with code {code}")]
    Api {
        /// The API function.
        call: String,
        /// Its return code.
        code: i64,
    },
    /// The caller broke the contract: unknown id, range outside a buffer, wrong arity, wrong access.
    #[error("invalid use: {what}")]
    Invalid {
        /// Which rule, with the values.
        what: String,
    },
    /// A wait named a point on a timeline that had failed.
    #[error("{point} failed: {cause}")]
    Poisoned {
        /// The point waited for.
        point: Point,
        /// What failed on that timeline first.
        cause: Box<Error>,
    },
}

impl Error {
    /// An [`Error::Invalid`] with this text.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// The error of a call of an API that returned this code, which the API calls `name`. After some codes the device is lost.
    pub fn of_call(call: &str, code: i64, name: Option<&str>, is_lost: bool) -> Self {
        let call = name.map_or_else(|| call.to_string(), |name| format!("{call} ({name})"));
        match is_lost {
            true => Error::Lost { cause: format!("{call} failed with code {code}") },
            false => Error::Api { call, code },
        }
    }

    /// The same for a call that allocates `wanted` bytes: some codes mean too little memory then.
    pub fn or_shortage(self, is_shortage: impl FnOnce(i64) -> bool, wanted: u64) -> Self {
        match self {
            Error::Api { code, .. } if is_shortage(code) => Error::OutOfMemory { wanted, free: None },
            other => other,
        }
    }

    /// Whether less of something would have fitted.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.root(), Error::OutOfMemory { .. } | Error::AllocationTooLarge { .. })
    }

    /// The error at the root of a chain of poisoned waits.
    pub fn root(&self) -> &Error {
        match self {
            Error::Poisoned { cause, .. } => cause.root(),
            other => other,
        }
    }
}

/// Why a backend has no adapters: its library or driver is missing or refuses.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("{cause} (tried {})", if tried.is_empty() { "nothing".into() } else { tried.join(", ") })]
pub struct Unavailable {
    /// The libraries or paths that were tried.
    pub tried: Vec<String>,
    /// The cause in words.
    pub cause: String,
}
