//! Detects defects in kernel sources that compilers do not report.

use crate::preprocessor::preprocess;
use crate::signature::{KernelSignature, signatures};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A defect in a kernel source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValidationError {
    /// The source defines no kernel.
    NoKernels,
    /// A kernel has no parameters, so it cannot write a result.
    NoArguments {
        /// Name of the kernel.
        kernel: String,
    },
    /// Two kernels have the same name.
    Duplicate {
        /// Name of the two kernels.
        kernel: String,
    },
    /// The source defines an unexpected number of kernels.
    WrongCount {
        /// Expected number of kernels.
        expected: usize,
        /// Names of the kernels that the source defines.
        found: Vec<String>,
    },
    /// The macros expand to too many tokens.
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
                    "expected {expected} kernels, but the source has {}: {}",
                    found.len(),
                    found.join(", ")
                )
            }
            Self::TooLong => write!(f, "the macros of the source expand to too many tokens"),
        }
    }
}

impl core::error::Error for ValidationError {}

/// Checks that `source` defines `expected` kernels, each with a unique name and at least one parameter.
///
/// # Errors
/// Returns the first defect, in the order of the variants of [`ValidationError`]. However,
/// [`ValidationError::TooLong`] takes precedence over all other variants.
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
