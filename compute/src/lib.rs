//! Single operators on any device, without a model: matrix products, attention, norms and more.
//!
//! [`Compute::open`] opens a device by the name that `ragtag devices` shows, or the best one. Operators take
//! tensors on the device, or host values with their shape. They return [`Pending`] results, which can be
//! waited for or awaited:
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
//! Everything runs on the device in the requested order. Tensors are immutable: an operator creates new ones.
//! Shapes are checked before anything runs, and errors name them. Dimensions of size zero are allowed
//! everywhere; such operators do nothing and allocate nothing.
//!
//! Every operator accepts f32, f16 and bf16, and computes in f32. Elementwise operators ([`Compute::unary`],
//! [`Compute::binary`], [`Compute::rope`]) and operators that only move values keep the type of their input.
//! Operators that sum (products, attention, convolution, reductions, norms, softmax) return f32, which
//! [`Compute::cast`] converts. [`NumericsClass`] states the accuracy relative to float64. Products of quantized
//! weights ([`Weights`]) are available in both classes; all other operators are exact.
//!
//! Knows the interfaces of kernels, not how they work.

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

/// A device for single operators. Clones share the device, which is closed with the last of them and the last
/// tensor on it.
#[derive(Clone)]
pub struct Compute {
    shared: Arc<Shared>,
}

impl Compute {
    /// Opens a device: `cpu`, `vulkan:0`, `auto` for the best one, or any text that `--device` accepts. If it
    /// selects several, the first is opened.
    ///
    /// # Errors
    /// [`Error::Open`] if there is no such device, or it cannot be opened.
    pub fn open(label: &str) -> Result<Self> {
        let backends = Backends::new(&Config::default());
        let chosen = Requested::new(Some(label), None).and_then(|wanted| wanted.choose(&backends.probe()));
        let selected = chosen.map_err(|error| Error::Open(error.to_string()))?.selected;
        let first = selected.first().ok_or_else(|| Error::Open(format!("no device matches {label}")))?;
        Self::on(backends.open(&[(first.clone(), DeviceId(0))], &Limits::default())?.swap_remove(0))
    }

    /// Uses a device that is already open.
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot start a thread for it.
    pub fn on(device: Checked) -> Result<Self> {
        Ok(Self { shared: Shared::new(device)? })
    }

    /// Returns the device's adapter.
    pub fn adapter(&self) -> &Adapter {
        self.shared.adapter()
    }

    /// Returns an operator's input as a tensor. Uploads host values.
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

    /// Like `given`, for floats of any type.
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

    /// Like `given`, converted to f32 on the device.
    fn f32s<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        match self.elements(operation, input)? {
            (tensor, ElementType::F32) => Ok(tensor),
            (tensor, _) => Ok(self.cast(&tensor, ElementType::F32)?.queued().clone()),
        }
    }

    /// Like `given`, for indices.
    fn indices<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        let tensor = self.given(operation, input)?;
        match tensor.kind {
            Type::Indices => Ok(tensor),
            got => Err(Error::Type { operation, wanted: "indices", got }),
        }
    }

    /// Creates an f32 tensor.
    fn make(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.shared.tensor(shape, Type::Elements(ElementType::F32))
    }

    /// Wraps the result of work enqueued so far.
    fn pending<T>(&self, result: T) -> Pending<T> {
        Pending::queued_at(&self.shared, self.shared.signalled(), result)
    }
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compute({})", self.adapter().label())
    }
}

/// Converts a size for kernels. Sizes of shapes with up to 2^32 − 1 values fit, except in empty shapes.
fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Checks that a value is finite and positive.
fn positive(operation: &'static str, name: &'static str, value: f32) -> Result<()> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(Error::Factor { operation, name, value }) }
}

/// Returns the numbers of values before an axis, along it, and after it.
fn around(operation: &'static str, shape: &Shape, axis: usize) -> Result<[usize; 3]> {
    let sizes = shape.sizes();
    if axis >= sizes.len() {
        return Err(Error::Axis { operation, axis, shape: shape.clone() });
    }
    let product = |sizes: &[usize]| Shape::from(sizes).count();
    Ok([product(&sizes[..axis])?, sizes[axis], product(&sizes[axis + 1..])?])
}
