//! Runs single operators on any device, without a model: matrix products, attention, norms and more.
//!
//! [`Compute::open`] opens a device by its label in the output of `ragtag devices`, or opens the best device.
//! Operators accept tensors on the device, or host values with their shape. They return [`Pending`] results.
//! Callers can block on a result or await it:
//!
//! ```
//! use ragtag_compute::{Compute, Gemm, Reduction, UnaryFunction};
//!
//! # fn main() -> ragtag_compute::Result<()> {
//! let device = Compute::open("cpu")?;
//! let weights = device.upload([2, 3], &[1.0, 0.0, 2.0, 0.5, -1.0, 3.0])?;
//! let x = [1.0, 2.0, 3.0, -1.0, 0.0, 1.0];
//!
//! // x · weightsᵀ, then ReLU. The second operator is queued behind the first.
//! let product = device.gemm(&Gemm { transpose_b: true, ..Gemm::default() }, ([2, 3], &x), &weights)?;
//! let positive = device.unary(UnaryFunction::Relu, &product)?.wait()?;
//! assert_eq!(device.read(&positive)?.wait()?, [7.0, 7.5, 1.0, 2.5]);
//!
//! let largest = device.reduce(Reduction::Max, &positive, 1)?;
//! assert_eq!(device.read(&largest)?.wait()?, [7.5, 2.5]);
//! # Ok(())
//! # }
//! ```
//!
//! The device runs all work in the order of the calls. Tensors are immutable, so each operator creates new
//! tensors. Operators check shapes before any work runs, and errors name the shapes. Dimensions of size zero
//! are always allowed. Operators on such shapes do no work and allocate no memory.
//!
//! Every operator accepts f32, f16 and bf16, and computes in f32. Elementwise operators ([`Compute::unary`],
//! [`Compute::binary`], [`Compute::rope`]) and operators that only move values keep the type of their input.
//! Operators that sum (products, attention, convolution, reductions, norms, softmax) return f32.
//! [`Compute::cast`] converts the result to another type. [`NumericsClass`] defines the accuracy relative to
//! float64. Products with quantised weights ([`Weights`]) are available in both numerics classes. All other
//! operators are exact.
//!
//! This crate uses the interfaces of kernels, but does not depend on their implementations.

#![forbid(unsafe_code)]

mod convolution;
mod device;
mod error;
mod lines;
mod pending;
mod products;
mod storage;
mod tensor;
mod values;

#[cfg(test)]
mod tests;

pub use convolution::Conv2d;
pub use error::{Error, Result};
pub use pending::Pending;
pub use products::{Attention, Gemm, Strided, Weights};
pub use ragtag_hal::Adapter;
pub use ragtag_kernels::binary::Operation as BinaryOperation;
pub use ragtag_kernels::reduce::Reduction;
pub use ragtag_kernels::unary::Function as UnaryFunction;
pub use ragtag_kernels::{ElementType, NumericsClass, TensorType};
pub use tensor::{Input, Shape, Tensor, Type};
pub use values::{Pairing, Rope};

use device::Shared;
use ragtag_devices::{Backends, Config, Requested};
use ragtag_hal::{Checked, DeviceId, Limits};
use std::sync::Arc;

/// A device that runs single operators. Clones share the device. The device is closed when the last clone and
/// the last tensor on it are dropped.
#[derive(Clone)]
pub struct Compute {
    shared: Arc<Shared>,
}

impl Compute {
    /// Opens the device that `label` selects: `cpu`, `vulkan:0`, `auto` for the best device, or any other
    /// device selection. If `label` selects several devices, the function opens the first.
    ///
    /// # Errors
    /// Returns [`Error::Open`] if the device does not exist or cannot be opened.
    pub fn open(label: &str) -> Result<Self> {
        let backends = Backends::new(&Config::default());
        let chosen = Requested::new(Some(label), None).and_then(|wanted| wanted.choose(&backends.probe()));
        let selected = chosen.map_err(|error| Error::Open(error.to_string()))?.selected;
        let first = selected.first().ok_or_else(|| Error::Open(format!("no device matches {label}")))?;
        Self::on(backends.open(&[(first.clone(), DeviceId(0))], &Limits::default())?.swap_remove(0))
    }

    /// Runs operators on a device that is already open.
    ///
    /// # Errors
    /// Returns [`Error::Open`] if the thread that wakes waiting tasks cannot be started.
    pub fn on(device: Checked) -> Result<Self> {
        Ok(Self { shared: Shared::new(device)? })
    }

    /// Returns the adapter of the device.
    pub fn adapter(&self) -> &Adapter {
        self.shared.adapter()
    }

    /// Returns an operator's input as a tensor. Uploads it first if it is in host memory.
    fn given<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        match input.into() {
            Input::Tensor(tensor) => match &tensor.memory {
                Some(memory) if !Arc::ptr_eq(memory.shared(), &self.shared) => Err(Error::OtherDevice {
                    operation,
                    device: self.adapter().label(),
                    other: memory.shared().adapter().label(),
                }),
                _ => Ok(tensor.clone()),
            },
            Input::Values(shape, values) => self.upload(shape, values),
            Input::Indices(shape, indices) => self.upload_indices(shape, indices),
        }
    }

    /// Like [`given`](Self::given), but also returns the element type. Fails unless the input holds
    /// floating-point values.
    fn elements<'a>(
        &self,
        operation: &'static str,
        input: impl Into<Input<'a>>,
    ) -> Result<(Tensor, ElementType)> {
        let tensor = self.given(operation, input)?;
        match tensor.kind {
            Type::Elements(element) => Ok((tensor, element)),
            got => Err(Error::Type { operation, wanted: "f32, f16 or bf16", got }),
        }
    }

    /// Like [`given`](Self::given), but converts the input to f32 on the device.
    fn f32s<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        match self.elements(operation, input)? {
            (tensor, ElementType::F32) => Ok(tensor),
            (tensor, _) => Ok(self.cast(&tensor, ElementType::F32)?.queued().clone()),
        }
    }

    /// Like [`given`](Self::given), but fails unless the input holds indices.
    fn indices<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        let tensor = self.given(operation, input)?;
        match tensor.kind {
            Type::Indices => Ok(tensor),
            got => Err(Error::Type { operation, wanted: "indices", got }),
        }
    }

    /// Creates an f32 tensor whose values are undefined.
    fn make(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.shared.tensor(shape, Type::Elements(ElementType::F32))
    }

    /// Wraps `result` in a [`Pending`] that becomes ready when all work submitted before this call has ended.
    fn pending<T>(&self, result: T) -> Pending<T> {
        Pending::queued_at(&self.shared, self.shared.signalled(), result)
    }
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compute({})", self.adapter().label())
    }
}

/// Converts a size to the 32-bit type that kernels use. Every size in a non-empty shape of at most 2^32 − 1
/// values fits. Sizes in an empty shape may be larger, and then saturate.
fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Checks that `value` is finite and positive. `name` appears in the error.
fn positive(operation: &'static str, name: &'static str, value: f32) -> Result<()> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(Error::Factor { operation, name, value }) }
}

/// Returns the product of the sizes before an axis, the size of the axis, and the product of the sizes after
/// it.
fn around(operation: &'static str, shape: &Shape, axis: usize) -> Result<[usize; 3]> {
    let sizes = shape.sizes();
    if axis >= sizes.len() {
        return Err(Error::Axis { operation, axis, shape: shape.clone() });
    }
    let product = |sizes: &[usize]| Shape::from(sizes).count();
    Ok([product(&sizes[..axis])?, sizes[axis], product(&sizes[axis + 1..])?])
}
