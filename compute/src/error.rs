//! Errors of single operators.

use super::tensor::{Shape, Type};
use ragtag_kernels::TensorType;

/// Result of single operators.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a single operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device, or it cannot be opened.
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
    /// A shape with too many or too few dimensions.
    #[error("{operation} of {shape}: {rule}")]
    Rank {
        /// Operator.
        operation: &'static str,
        /// Shape.
        shape: Shape,
        /// Required shape.
        rule: &'static str,
    },
    /// An axis that the shape does not have.
    #[error("{operation} of {shape}: there is no axis {axis}")]
    Axis {
        /// Operator.
        operation: &'static str,
        /// Axis.
        axis: usize,
        /// Shape.
        shape: Shape,
    },
    /// A reduction over an empty axis whose result is undefined.
    #[error("{operation} of {shape}: axis {axis} has no values")]
    EmptyAxis {
        /// Operator.
        operation: &'static str,
        /// Axis.
        axis: usize,
        /// Shape.
        shape: Shape,
    },
    /// A scale or another factor that is not finite and positive.
    #[error("{operation}: {name} must be finite and positive (got {value})")]
    Factor {
        /// Operator.
        operation: &'static str,
        /// Name of the factor.
        name: &'static str,
        /// Value.
        value: f32,
    },
    /// An invalid argument.
    #[error("{operation}: {what}")]
    Argument {
        /// Operator.
        operation: &'static str,
        /// Description with the values.
        what: String,
    },
    /// An index of a row that does not exist.
    #[error("{operation}: index {index} at {place} is not in a table of {rows} rows")]
    Index {
        /// Operator.
        operation: &'static str,
        /// Index.
        index: u32,
        /// Position among the indices.
        place: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// A tensor of a type that the operator does not accept.
    #[error("{operation} takes {wanted}, not {got}")]
    Type {
        /// Operator.
        operation: &'static str,
        /// Accepted types.
        wanted: &'static str,
        /// Type of the tensor.
        got: Type,
    },
    /// A number of values that does not match a shape.
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
    /// More than 2^32 − 1 values.
    #[error("{shape} has more than 2^32 - 1 values")]
    TooLarge {
        /// Shape.
        shape: Shape,
    },
    /// A request for memory of zero bytes.
    #[error("{shape} takes no memory")]
    ZeroBytes {
        /// Shape.
        shape: Shape,
    },
    /// A tensor of another device.
    #[error("{operation}: a tensor is on {other}, not on {device}")]
    OtherDevice {
        /// Operator.
        operation: &'static str,
        /// Device of the operator.
        device: String,
        /// Device of the tensor.
        other: String,
    },
    /// The device has no suitable kernel.
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
