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
    /// Two shapes that do not match.
    #[error("{operation}: shapes {left} and {right} do not match: {rule}")]
    Shapes {
        /// Operator.
        operation: &'static str,
        /// First shape.
        left: Shape,
        /// Second shape.
        right: Shape,
        /// Rule that the shapes violate.
        rule: &'static str,
    },
    /// Shape with too many or too few dimensions.
    #[error("{operation} of {shape}: {rule}")]
    Rank {
        /// Operator.
        operation: &'static str,
        /// Shape.
        shape: Shape,
        /// Required shape.
        rule: &'static str,
    },
    /// Axis that the shape does not have.
    #[error("{operation} of {shape}: there is no axis {axis}")]
    Axis {
        /// Operator.
        operation: &'static str,
        /// Axis.
        axis: usize,
        /// Shape.
        shape: Shape,
    },
    /// Reduction over an empty axis whose result is undefined.
    #[error("{operation} of {shape}: axis {axis} has no values")]
    EmptyAxis {
        /// Operator.
        operation: &'static str,
        /// Axis.
        axis: usize,
        /// Shape.
        shape: Shape,
    },
    /// Scale or another factor that is not finite and positive.
    #[error("{operation}: {name} must be finite and positive (got {value})")]
    Factor {
        /// Operator.
        operation: &'static str,
        /// Name of the factor.
        name: &'static str,
        /// Value.
        value: f32,
    },
    /// Invalid argument of an operator.
    #[error("{operation}: {what}")]
    Argument {
        /// Operator.
        operation: &'static str,
        /// Description with the values.
        what: String,
    },
    /// Index of a row that does not exist.
    #[error("{operation}: index {index} at {place} is not in a table of {rows} rows")]
    Index {
        /// Operator.
        operation: &'static str,
        /// Index.
        index: u32,
        /// Position of the index among all indices.
        place: usize,
        /// Number of rows of the table.
        rows: usize,
    },
    /// Tensor of a type that the operator does not accept.
    #[error("{operation} takes {wanted}, not {got}")]
    Type {
        /// Operator.
        operation: &'static str,
        /// Types that the operator accepts.
        wanted: &'static str,
        /// Type of the tensor.
        got: Type,
    },
    /// Number of values that does not match a shape.
    #[error("{values} values do not fill {shape}")]
    Length {
        /// Number of values.
        values: usize,
        /// Shape.
        shape: Shape,
    },
    /// Rows that do not consist of whole blocks.
    #[error("rows of {shape} are not whole blocks of {tensor_type}")]
    Blocks {
        /// Type.
        tensor_type: TensorType,
        /// Shape.
        shape: Shape,
    },
    /// Shape with more than 2^32 − 1 values.
    #[error("{shape} has more than 2^32 - 1 values")]
    TooLarge {
        /// Shape.
        shape: Shape,
    },
    /// Request for memory of zero bytes.
    #[error("{shape} takes no memory")]
    ZeroBytes {
        /// Shape.
        shape: Shape,
    },
    /// Tensor that belongs to another device.
    #[error("{operation}: a tensor is on {other}, not on {device}")]
    OtherDevice {
        /// Operator.
        operation: &'static str,
        /// Device on which the operator runs.
        device: String,
        /// Device to which the tensor belongs.
        other: String,
    },
    /// The device has no kernel for the operator.
    #[error("{device} has no kernel {kernel}")]
    NoKernel {
        /// Device.
        device: String,
        /// Kernel.
        kernel: String,
    },
    /// The device refused the work or failed.
    #[error(transparent)]
    Device(#[from] ragtag_hal::Error),
}
