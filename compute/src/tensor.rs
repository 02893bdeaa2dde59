//! Tensors in device memory, with their shapes and types.

use super::device::Memory;
use super::error::{Error, Result};
use super::pending::Pending;
use ragtag_kernels::{ElementType, TensorType};
use std::fmt;
use std::sync::Arc;

/// Sizes of a tensor's dimensions, outermost first. A tensor without dimensions has one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Returns the size of each dimension.
    pub fn sizes(&self) -> &[usize] {
        &self.0
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of values in a tensor of this shape.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the number exceeds 2^32 − 1, because kernels count in 32 bits.
    pub fn count(&self) -> Result<usize> {
        let count = self.0.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        // A size of zero makes the count zero, even if the product of the other sizes overflows.
        let count = if self.0.contains(&0) { Some(0) } else { count };
        count
            .filter(|count| u32::try_from(*count).is_ok())
            .ok_or_else(|| Error::TooLarge { shape: self.clone() })
    }

    /// Returns all sizes except the last, and the last size. Treats a shape without dimensions as one row of
    /// one value.
    pub(crate) fn rows(&self) -> (&[usize], usize) {
        self.0.split_last().map_or((&[], 1), |(last, rest)| (rest, *last))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Self {
        Self(sizes.into())
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Self {
        Self(sizes.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Self {
        Self(sizes)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Type of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Floating-point values.
    Elements(ElementType),
    /// 32-bit indices.
    Indices,
    /// Blocks in file format, along the last dimension.
    Blocks(TensorType),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Elements(element) => element.fmt(f),
            Type::Indices => f.write_str("indices"),
            Type::Blocks(tensor_type) => tensor_type.fmt(f),
        }
    }
}

impl Type {
    /// Returns the size in bytes of a tensor of this type and shape, rounded up to whole 32-bit words.
    pub(crate) fn bytes(self, shape: &Shape) -> Result<u64> {
        let count = shape.count()? as u64;
        let bytes = match self {
            Type::Elements(element) => count * element.bytes(),
            Type::Indices => count * 4,
            Type::Blocks(tensor_type) => {
                let row = shape.rows().1 as u64;
                let whole = tensor_type.bytes(row).and(tensor_type.bytes(count));
                whole.ok_or_else(|| Error::Blocks { tensor_type, shape: shape.clone() })?
            }
        };
        Ok(bytes.next_multiple_of(4))
    }
}

/// Tensor in the memory of a device. Its memory is freed when the last tensor that shares it is dropped.
/// Operators never change their inputs, so clones of a tensor share its memory.
#[derive(Clone)]
pub struct Tensor {
    pub(super) shape: Shape,
    pub(super) kind: Type,
    /// Device memory that holds the values, or `None` for an empty tensor.
    pub(super) memory: Option<Arc<Memory>>,
}

impl Tensor {
    /// Returns the shape of the tensor.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the type of the values.
    pub fn kind(&self) -> Type {
        self.kind
    }

    /// Returns a tensor with the same values in another shape. The two tensors share their memory.
    ///
    /// # Errors
    /// Returns [`Error::Shapes`] if the number of values differs, or [`Error::Blocks`] if a block would
    /// extend over two rows.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.count()? != self.shape.count()? {
            let (left, right) = (self.shape.clone(), shape);
            return Err(Error::Shapes {
                operation: "reshape",
                left,
                right,
                rule: "the number of values must be equal",
            });
        }
        self.kind.bytes(&shape)?;
        Ok(Tensor { shape, ..self.clone() })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {})", self.kind, self.shape)
    }
}

/// Input of an operator: a tensor, the pending tensor of another operator, or host values with their shape.
/// The operator first uploads host values to the device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Input<'a> {
    /// A tensor on the device.
    Tensor(&'a Tensor),
    /// f32 values in host memory, with their shape.
    Values(Shape, &'a [f32]),
    /// Indices in host memory, with their shape.
    Indices(Shape, &'a [u32]),
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Tensor(tensor)
    }
}

impl<'a> From<&'a Pending<Tensor>> for Input<'a> {
    fn from(pending: &'a Pending<Tensor>) -> Self {
        Input::Tensor(pending.queued())
    }
}

impl<'a, S: Into<Shape>, V: AsRef<[f32]> + ?Sized> From<(S, &'a V)> for Input<'a> {
    fn from((shape, values): (S, &'a V)) -> Self {
        Input::Values(shape.into(), values.as_ref())
    }
}

impl<'a> From<&'a [u32]> for Input<'a> {
    fn from(indices: &'a [u32]) -> Self {
        Input::Indices([indices.len()].into(), indices)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Input<'a> {
    fn from(indices: &'a [u32; N]) -> Self {
        Input::Indices([N].into(), indices)
    }
}

impl<'a> From<&'a Vec<u32>> for Input<'a> {
    fn from(indices: &'a Vec<u32>) -> Self {
        Input::Indices([indices.len()].into(), indices)
    }
}
