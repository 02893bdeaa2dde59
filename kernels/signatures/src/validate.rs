//! What can be wrong with a kernel source that a compiler would take.

use crate::preprocessor::preprocess;
use crate::signature::{KernelSignature, signatures};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// What is wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValidationError {
    /// It defines no kernel.
    NoKernels,
    /// A kernel without parameters: it could not write a result anywhere.
    NoArguments {
        /// The kernel.
        kernel: String,
    },
    /// Two kernels of one name.
    Duplicate {
        /// The name.
        kernel: String,
    },
    /// Not as many kernels as expected.
    WrongCount {
        /// So many were expected.
        expected: usize,
        /// These are there.
        found: Vec<String>,
    },
    /// Its macros expand to more tokens than are looked at.
    TooLong,
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKernels => write!(f, "the source defines no kernel"),
            Self::NoArguments { kernel } => write!(f, "the kernel {kernel} has no parameters"),
            Self::Duplicate { kernel } => write!(f, "the kernel {kernel} is defined twice"),
            Self::WrongCount { expected, found } => {
                write!(
                    f,
                    "{expected} kernels are expected, the source has {}: {}",
                    found.len(),
                    found.join(", ")
                )
            }
            Self::TooLong => write!(f, "the source's macros expand to too long a text"),
        }
    }
}

impl core::error::Error for ValidationError {}

/// Reads the kernels of a source that must define `expected` of them, each with a name of its own and with parameters.
///
/// # Errors
/// The first thing that is wrong, in the order of [`ValidationError`]'s cases; but [`ValidationError::TooLong`] before all.
pub fn validate_kernel_source(
    source: &str,
    expected: usize,
) -> Result<Vec<KernelSignature>, ValidationError> {
    let text = preprocess(source);
    if !text.complete {
        return Err(ValidationError::TooLong);
    }
    let kernels = signatures(&text.tokens);
    if kernels.is_empty() {
        return Err(ValidationError::NoKernels);
    }
    if let Some(kernel) = kernels.iter().find(|kernel| kernel.args.is_empty()) {
        return Err(ValidationError::NoArguments { kernel: kernel.name.clone() });
    }
    let is_repeated =
        |(at, kernel): &(usize, &KernelSignature)| kernels[..*at].iter().any(|k| k.name == kernel.name);
    if let Some((_, kernel)) = kernels.iter().enumerate().find(is_repeated) {
        return Err(ValidationError::Duplicate { kernel: kernel.name.clone() });
    }
    if kernels.len() != expected {
        let found = kernels.into_iter().map(|kernel| kernel.name).collect();
        return Err(ValidationError::WrongCount { expected, found });
    }
    Ok(kernels)
}
