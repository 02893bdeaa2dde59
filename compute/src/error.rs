//! What can be wrong with a single operator.

use super::tensor::{Shape, Type};
use ragtag_kernels::TensorType;

/// Result of single operators.
pub type Result<T> = std::result::Result<T, Error>;

/// Anything that can go wrong with a single operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device, or it does not open.
    #[error("{0}")]
    Open(String),
    /// Two shapes that an operator cannot bring together.
    #[error("{operation}: {left} and {right} do not fit: {rule}")]
    Shapes {
        /// The operator.
        operation: &'static str,
        /// One shape.
        left: Shape,
        /// The other.
        right: Shape,
        /// What would fit.
        rule: &'static str,
    },
    /// A shape with too many or too few dimensions.
    #[error("{operation} of {shape}: {rule}")]
    Rank {
        /// The operator.
        operation: &'static str,
        /// The shape.
        shape: Shape,
        /// What it takes.
        rule: &'static str,
    },
    /// An axis that the shape does not have.
    #[error("{operation} of {shape}: there is no axis {axis}")]
    Axis {
        /// The operator.
        operation: &'static str,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// A reduction of no values that has no value of its own.
    #[error("{operation} of {shape}: axis {axis} has no values")]
    EmptyAxis {
        /// The operator.
        operation: &'static str,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// A scale, or another factor, that is not finite and positive.
    #[error("{operation}: a {name} of {value} is not finite and positive")]
    Factor {
        /// The operator.
        operation: &'static str,
        /// Which factor.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// A number that makes no sense with the shapes.
    #[error("{operation}: {what}")]
    Argument {
        /// The operator.
        operation: &'static str,
        /// What is wrong, with the values.
        what: String,
    },
    /// An index of a row that does not exist.
    #[error("{operation}: index {index} at {place} of a table of {rows} rows")]
    Index {
        /// The operator.
        operation: &'static str,
        /// The index.
        index: u32,
        /// Which of the indices.
        place: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// A tensor of a type that the operator does not take.
    #[error("{operation} takes {wanted}, not {got}")]
    Type {
        /// The operator.
        operation: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// What it was given.
        got: Type,
    },
    /// Values that do not fill a shape.
    #[error("{values} values do not fill {shape}")]
    Length {
        /// How many values there are.
        values: usize,
        /// The shape.
        shape: Shape,
    },
    /// Rows that are no whole blocks.
    #[error("rows of {shape} are not whole blocks of {tensor_type}")]
    Blocks {
        /// The type.
        tensor_type: TensorType,
        /// The shape.
        shape: Shape,
    },
    /// More than 2^32 − 1 values.
    #[error("{shape} has more values than an operator takes")]
    TooLarge {
        /// The shape.
        shape: Shape,
    },
    /// Memory of zero bytes was asked for.
    #[error("{shape} takes no memory")]
    ZeroBytes {
        /// The shape.
        shape: Shape,
    },
    /// A tensor of another device.
    #[error("{operation}: a tensor lies on {other}, not on {device}")]
    OtherDevice {
        /// The operator.
        operation: &'static str,
        /// The operator's device.
        device: String,
        /// Where the tensor lies.
        other: String,
    },
    /// The device has no kernel for it.
    #[error("{device} has no kernel {kernel}")]
    NoKernel {
        /// The device.
        device: String,
        /// The kernel.
        kernel: String,
    },
    /// The device refused, or failed.
    #[error(transparent)]
    Device(#[from] ragtag_hal::Error),
}
