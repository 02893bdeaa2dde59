//! Errors of single operators.

use super::tensor::{Shape, Type};
use ragtag_kernels::TensorType;

/// Result of single operators.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of a single operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The requested device does not exist or cannot be opened.
    #[error("{0}")]
    Open(String),
    /// The shapes of two inputs do not match.
    #[error("{operation}: shapes {left} and {right} do not match: {rule}")]
    Shapes {
        /// Name of the operator.
        operation: &'static str,
        /// Shape of the first input.
        left: Shape,
        /// Shape of the second input.
        right: Shape,
        /// Rule that the shapes violate.
        rule: &'static str,
    },
    /// An input has too many or too few dimensions.
    #[error("{operation} of {shape}: {rule}")]
    Rank {
        /// Name of the operator.
        operation: &'static str,
        /// Shape of the input.
        shape: Shape,
        /// Description of the required shape.
        rule: &'static str,
    },
    /// An axis does not exist in the shape.
    #[error("{operation} of {shape}: there is no axis {axis}")]
    Axis {
        /// Name of the operator.
        operation: &'static str,
        /// Index of the axis.
        axis: usize,
        /// Shape of the input.
        shape: Shape,
    },
    /// The reduction of an empty axis has no defined result.
    #[error("{operation} of {shape}: axis {axis} has no values")]
    EmptyAxis {
        /// Name of the operator.
        operation: &'static str,
        /// Index of the axis.
        axis: usize,
        /// Shape of the input.
        shape: Shape,
    },
    /// A scale or another factor is not finite and positive.
    #[error("{operation}: {name} must be finite and positive (got {value})")]
    Factor {
        /// Name of the operator.
        operation: &'static str,
        /// Name of the factor.
        name: &'static str,
        /// Value of the factor.
        value: f32,
    },
    /// An argument of an operator is invalid.
    #[error("{operation}: {what}")]
    Argument {
        /// Name of the operator.
        operation: &'static str,
        /// Description of the problem, with the invalid values.
        what: String,
    },
    /// An index selects a row that does not exist.
    #[error("{operation}: index {index} at {place} is not in a table of {rows} rows")]
    Index {
        /// Name of the operator.
        operation: &'static str,
        /// Value of the index.
        index: u32,
        /// Position of this index in the list of indices.
        place: usize,
        /// Number of rows in the table.
        rows: usize,
    },
    /// An operator does not accept the type of a tensor.
    #[error("{operation} takes {wanted}, not {got}")]
    Type {
        /// Name of the operator.
        operation: &'static str,
        /// Types that the operator accepts.
        wanted: &'static str,
        /// Type of the tensor.
        got: Type,
    },
    /// The number of values does not match the shape.
    #[error("{values} values do not fill {shape}")]
    Length {
        /// Number of given values.
        values: usize,
        /// Given shape.
        shape: Shape,
    },
    /// Rows do not consist of whole blocks.
    #[error("rows of {shape} are not whole blocks of {tensor_type}")]
    Blocks {
        /// Tensor type of the blocks.
        tensor_type: TensorType,
        /// Given shape.
        shape: Shape,
    },
    /// A shape has more than 2^32 − 1 values.
    #[error("{shape} has more than 2^32 - 1 values")]
    TooLarge {
        /// The shape.
        shape: Shape,
    },
    /// A tensor would need an allocation of zero bytes.
    #[error("{shape} takes no memory")]
    ZeroBytes {
        /// Shape of the tensor.
        shape: Shape,
    },
    /// A tensor belongs to another device.
    #[error("{operation}: a tensor is on {other}, not on {device}")]
    OtherDevice {
        /// Name of the operator.
        operation: &'static str,
        /// Device on which the operator runs.
        device: String,
        /// Device to which the tensor belongs.
        other: String,
    },
    /// The device has no kernel for the operator.
    #[error("{device} has no kernel {kernel}")]
    NoKernel {
        /// Label of the device.
        device: String,
        /// Name of the kernel.
        kernel: String,
    },
    /// The device rejected the work, or the work failed.
    #[error(transparent)]
    Device(#[from] ragtag_hal::Error),
}
