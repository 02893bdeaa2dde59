//! Single operators on any device: a matrix product, an attention or a norm, without a model.
//!
//! [`Compute::open`] opens a device by the name that `ragtag devices` shows, or the best one. Operators take tensors that lie
//! on it, or values of the host with their shape, and return [`Pending`] results, which can be waited for or awaited:
//!
//! ```
//! use ragtag_compute::{Compute, Gemm, Reduction, UnaryFunction};
//!
//! # fn main() -> ragtag_compute::Result<()> {
//! let device = Compute::open("cpu")?;
//! let weights = device.upload([2, 3], &[1.0, 0.0, 2.0, 0.5, -1.0, 3.0])?;
//! let x = [1.0, 2.0, 3.0, -1.0, 0.0, 1.0];
//!
//! // x · weightsᵀ, then what is negative to zero. The second operator is queued behind the first.
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
//! Everything runs on the device, in the order in which it was asked for. Tensors never change: an operator makes new ones.
//! Shapes are checked before anything runs, and errors name them. Dimensions of size zero are allowed everywhere: there is
//! then nothing to do, and nothing is allocated.
//!
//! Every operator takes f32, f16 and bf16, and computes in f32. What computes each value from few others ([`Compute::unary`],
//! [`Compute::binary`], [`Compute::rope`], and what only moves values) gives the type that it is given; what sums (products,
//! attention, convolution, reductions, norms, softmax) gives f32, which [`Compute::cast`] makes smaller. [`NumericsClass`] says how close results come to float64. Products of quantised
//! weights ([`Weights`]) may be asked for in either class; all else is exact.
//!
//! This crate must not know how kernels work: it knows their interfaces.

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

/// A device for single operators. Copies of it are the same device, which is closed when the last of them and the last
/// tensor on it are gone.
#[derive(Clone)]
pub struct Compute {
    shared: Arc<Shared>,
}

impl Compute {
    /// Opens a device: `cpu`, `vulkan:0`, `auto` for the best one; whatever `--device` takes. Of several the first is opened.
    ///
    /// # Errors
    /// [`Error::Open`] if there is no such device, or it does not open.
    pub fn open(label: &str) -> Result<Self> {
        let backends = Backends::new(&Config::default());
        let chosen = Requested::new(Some(label), None).and_then(|wanted| wanted.choose(&backends.probe()));
        let selected = chosen.map_err(|error| Error::Open(error.to_string()))?.selected;
        let first = selected.first().ok_or_else(|| Error::Open(format!("{label}: no device")))?;
        Self::on(backends.open(&[(first.clone(), DeviceId(0))], &Limits::default())?.swap_remove(0))
    }

    /// Takes a device that is open.
    ///
    /// # Errors
    /// [`Error::Open`] if the system starts no thread for it.
    pub fn on(device: Checked) -> Result<Self> {
        Ok(Self { shared: Shared::new(device)? })
    }

    /// The device.
    pub fn adapter(&self) -> &Adapter {
        self.shared.adapter()
    }

    /// The tensor that an operator is given, uploaded if it is of the host.
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

    /// The same, of floats of some type.
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

    /// The same, as f32: 16-bit values are converted first, on the device.
    fn f32s<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        match self.elements(operation, input)? {
            (tensor, ElementType::F32) => Ok(tensor),
            (tensor, _) => Ok(self.cast(&tensor, ElementType::F32)?.queued().clone()),
        }
    }

    /// The same, of indices.
    fn indices<'a>(&self, operation: &'static str, input: impl Into<Input<'a>>) -> Result<Tensor> {
        let tensor = self.given(operation, input)?;
        match tensor.kind {
            Type::Indices => Ok(tensor),
            got => Err(Error::Type { operation, wanted: "indices", got }),
        }
    }

    /// A new tensor of f32.
    fn make(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.shared.tensor(shape, Type::Elements(ElementType::F32))
    }

    /// What is being made by now.
    fn pending<T>(&self, result: T) -> Pending<T> {
        Pending::queued_at(&self.shared, self.shared.signalled(), result)
    }
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compute({})", self.adapter().label())
    }
}

/// A size as kernels take it. Shapes whose values fit 32 bits have sizes that do, but where there are no values at all.
fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Refuses what is not finite and positive.
fn positive(operation: &'static str, name: &'static str, value: f32) -> Result<()> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(Error::Factor { operation, name, value }) }
}

/// The values before an axis, along it, and after it.
fn around(operation: &'static str, shape: &Shape, axis: usize) -> Result<[usize; 3]> {
    let sizes = shape.sizes();
    if axis >= sizes.len() {
        return Err(Error::Axis { operation, axis, shape: shape.clone() });
    }
    let product = |sizes: &[usize]| Shape::from(sizes).count();
    Ok([product(&sizes[..axis])?, sizes[axis], product(&sizes[axis + 1..])?])
}
