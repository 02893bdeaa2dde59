//! To the device and back, and from one form to another.

use super::device::Memory;
use super::error::{Error, Result};
use super::pending::Pending;
use super::tensor::{Input, Shape, Tensor, Type};
use super::{Compute, word};
use ragtag_kernels::elements::{self, RANK};
use ragtag_kernels::{ElementType, Kernel, TensorType};
use std::ops::Range;
use std::sync::Arc;

/// Sizes with the strides of each operand, outermost first.
pub(super) struct Walk<const N: usize> {
    sizes: Vec<usize>,
    strides: [Vec<usize>; N],
}

impl<const N: usize> Walk<N> {
    /// Dimensions that no operand tells apart become one; those of size one go.
    pub(super) fn new(sizes: &[usize], strides: [&[usize]; N]) -> Self {
        let mut walk = Self { sizes: Vec::new(), strides: std::array::from_fn(|_| Vec::new()) };
        for (dimension, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
            let continues = |(own, strides): (&Vec<usize>, &&[usize])| {
                own.last().is_some_and(|last| *last == strides[dimension] * size)
            };
            if !walk.sizes.is_empty() && walk.strides.iter().zip(&strides).all(continues) {
                *walk.sizes.last_mut().expect("it is not empty") *= size;
                walk.strides.iter_mut().for_each(|own| _ = own.pop());
            } else {
                walk.sizes.push(size);
            }
            walk.strides.iter_mut().zip(&strides).for_each(|(own, strides)| own.push(strides[dimension]));
        }
        walk
    }

    /// The sizes, then the strides of each operand, with as many dimensions as kernels take.
    pub(super) fn constants(&self) -> Option<Vec<u32>> {
        let missing = RANK.checked_sub(self.sizes.len())?;
        let padded = |values: &[usize], front: u32| {
            let words: Vec<u32> = values.iter().map(|value| word(*value)).collect();
            [vec![front; missing], words].concat()
        };
        let strides = self.strides.iter().flat_map(|strides| padded(strides, 0));
        Some(padded(&self.sizes, 1).into_iter().chain(strides).collect())
    }
}

/// The strides of values that lie one after the other.
pub(super) fn contiguous(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(sizes[i]);
    }
    strides
}

fn bytes_of<T, const N: usize>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N], out: &mut [u8]) {
    let (chunks, rest) = out.as_chunks_mut::<N>();
    chunks.iter_mut().zip(values).for_each(|(out, value)| *out = to_bytes(value));
    rest.fill(0);
}

impl Compute {
    /// Copies f32 values to the device.
    ///
    /// # Errors
    /// [`Error::Length`] if they do not fill the shape; what the device says.
    pub fn upload(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        let kind = Type::Elements(ElementType::F32);
        self.upload_as(shape.into(), kind, values.len(), |out| bytes_of(values, |v| v.to_le_bytes(), out))
    }

    /// Copies indices to the device.
    ///
    /// # Errors
    /// As for [`Compute::upload`].
    pub fn upload_indices(&self, shape: impl Into<Shape>, indices: &[u32]) -> Result<Tensor> {
        let fill = |out: &mut [u8]| bytes_of(indices, |v| v.to_le_bytes(), out);
        self.upload_as(shape.into(), Type::Indices, indices.len(), fill)
    }

    /// Copies blocks, as files have them, to the device. The last dimension is whole blocks.
    ///
    /// # Errors
    /// [`Error::Type`] for a type without blocks, [`Error::Blocks`] if rows are not whole ones, [`Error::Length`] if there
    /// are not as many bytes as the shape takes; what the device says.
    pub fn upload_blocks(
        &self,
        tensor_type: TensorType,
        shape: impl Into<Shape>,
        blocks: &[u8],
    ) -> Result<Tensor> {
        let (shape, kind) = (shape.into(), blocks_of("upload", tensor_type)?);
        kind.bytes(&shape)?;
        let values = blocks.len() / tensor_type.block_bytes() * tensor_type.block_values();
        let is_whole = blocks.len().is_multiple_of(tensor_type.block_bytes());
        let values = if is_whole { values } else { usize::MAX };
        self.upload_as(shape, kind, values, |out| bytes_of(blocks, |byte| [*byte], out))
    }

    fn upload_as(
        &self,
        shape: Shape,
        kind: Type,
        values: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Tensor> {
        if shape.count()? != values {
            return Err(Error::Length { values, shape });
        }
        let tensor = self.shared.tensor(shape, kind)?;
        if let Some(memory) = &tensor.memory {
            self.shared.upload(memory, |out| {
                fill(out);
                // Blocks and 16-bit values end where their last word may not.
                Ok(())
            })?;
        }
        Ok(tensor)
    }

    /// A tensor of f32 zeros.
    ///
    /// # Errors
    /// [`Error::ZeroBytes`] if it would have no values: there is no memory of zero bytes.
    pub fn zeros(&self, shape: impl Into<Shape>) -> Result<Pending<Tensor>> {
        let tensor = self.make(shape)?;
        let memory =
            tensor.memory.as_ref().ok_or_else(|| Error::ZeroBytes { shape: tensor.shape.clone() })?;
        self.shared.fill(memory, 0)?;
        Ok(self.pending(tensor))
    }

    /// The values of a tensor, as f32: 16-bit ones are converted, blocks decoded on the device.
    ///
    /// # Errors
    /// [`Error::Type`] for indices; what the device says.
    pub fn read<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Vec<f32>>> {
        let x = self.given("read", x)?;
        let x = match x.kind {
            Type::Blocks(_) => self.dequantise(&x)?.queued().clone(),
            Type::Elements(ElementType::F32) => x,
            _ => self.cast(&x, ElementType::F32)?.queued().clone(),
        };
        self.download(x.memory.as_ref(), |bytes| {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        })
    }

    /// The values of a tensor of indices.
    ///
    /// # Errors
    /// [`Error::Type`] for anything else; what the device says.
    pub fn read_indices<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Vec<u32>>> {
        let x = self.indices("read", x)?;
        self.download(x.memory.as_ref(), |bytes| {
            bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
        })
    }

    /// The bytes of a tensor, as the device has them: 16-bit values and blocks one after the other.
    ///
    /// # Errors
    /// What the device says.
    pub fn read_bytes<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Vec<u8>>> {
        let x = self.given("read", x)?;
        let count = x.shape.count()?;
        let bytes = match x.kind {
            Type::Elements(element) => count * element.bytes() as usize,
            Type::Indices => count * 4,
            Type::Blocks(tensor_type) => count / tensor_type.block_values() * tensor_type.block_bytes(),
        };
        self.download(x.memory.as_ref(), move |all| all[..bytes].to_vec())
    }

    fn download<T: Default + 'static>(
        &self,
        memory: Option<&Arc<Memory>>,
        read: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<Pending<T>> {
        let Some(memory) = memory else {
            return Ok(Pending::after(&self.shared, 0, || Ok(T::default())));
        };
        let (point, region) = self.shared.download(memory)?;
        let make = move || Ok(read(&region.read(0..region.bytes())?));
        Ok(Pending::after(&self.shared, point, make))
    }

    /// A copy with memory of its own.
    ///
    /// # Errors
    /// What the device says.
    pub fn copy<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Tensor>> {
        let x = self.given("copy", x)?;
        let out = self.shared.tensor(x.shape.clone(), x.kind)?;
        if let (Some(from), Some(to)) = (&x.memory, &out.memory) {
            self.shared.copy(from, to)?;
        }
        Ok(self.pending(out))
    }

    /// The values in another type: rounded to nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
    ///
    /// # Errors
    /// [`Error::Type`] for indices and blocks; what the device says.
    pub fn cast<'a>(&self, x: impl Into<Input<'a>>, to: ElementType) -> Result<Pending<Tensor>> {
        let (x, from) = self.elements("cast", x)?;
        let sizes = x.shape.sizes().to_vec();
        self.walk("cast", &x, [from, to], 0, (&sizes, &contiguous(&sizes)))
    }

    /// The dimensions in another order: dimension i of the result is dimension `order[i]` of `x`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the order does not name every dimension once, [`Error::Rank`] if more than six dimensions
    /// change places; what the device says.
    pub fn transpose<'a>(&self, x: impl Into<Input<'a>>, order: &[usize]) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("transpose", x)?;
        let mut named = order.to_vec();
        named.sort_unstable();
        if !named.into_iter().eq(0..x.shape.rank()) {
            let what = format!("{order:?} does not name each dimension of {} once", x.shape);
            return Err(Error::Argument { operation: "transpose", what });
        }
        let strides = contiguous(x.shape.sizes());
        let [sizes, strides] =
            [x.shape.sizes(), &strides].map(|of| order.iter().map(|i| of[*i]).collect::<Vec<_>>());
        self.walk("transpose", &x, [element; 2], 0, (&sizes, &strides))
    }

    /// A part of a tensor: these places of an axis.
    ///
    /// # Errors
    /// [`Error::Axis`] for an axis that there is not, [`Error::Argument`] for places that there are not; what the device
    /// says.
    pub fn slice<'a>(
        &self,
        x: impl Into<Input<'a>>,
        axis: usize,
        places: Range<usize>,
    ) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("slice", x)?;
        let [_, size, inner] = super::around("slice", &x.shape, axis)?;
        if places.start > places.end || places.end > size {
            let what = format!("{places:?} of axis {axis} of {}", x.shape);
            return Err(Error::Argument { operation: "slice", what });
        }
        let strides = contiguous(x.shape.sizes());
        let mut sizes = x.shape.sizes().to_vec();
        sizes[axis] = places.len();
        self.walk("slice", &x, [element; 2], places.start * inner, (&sizes, &strides))
    }

    /// Copies elements by strides.
    fn walk(
        &self,
        operation: &'static str,
        x: &Tensor,
        [from, to]: [ElementType; 2],
        first: usize,
        (sizes, strides): (&[usize], &[usize]),
    ) -> Result<Pending<Tensor>> {
        let out = self.shared.tensor(sizes, Type::Elements(to))?;
        if out.memory.is_some() {
            let shape = Walk::new(sizes, [strides]).constants();
            let rule = "at most six dimensions that do not lie one in the other";
            let shape = shape.ok_or_else(|| Error::Rank { operation, shape: x.shape.clone(), rule })?;
            let types = [elements::number(from), elements::number(to), word(first)];
            self.shared.launch(Kernel::Copy, 1, &[x, &out], &[types.as_slice(), &shape].concat())?;
        }
        Ok(self.pending(out))
    }

    /// Values as blocks, as files have them. The last dimension is whole blocks.
    ///
    /// # Errors
    /// [`Error::Type`] for a type without blocks, [`Error::Blocks`] if rows are not whole ones; what the device says.
    pub fn quantise<'a>(&self, x: impl Into<Input<'a>>, tensor_type: TensorType) -> Result<Pending<Tensor>> {
        let x = self.f32s("quantise", x)?;
        let kind = blocks_of("quantise", tensor_type)?;
        let out = self.shared.tensor(x.shape.clone(), kind)?;
        self.blocks(Kernel::EncodeBlocks, tensor_type, &x, out)
    }

    /// The values of blocks.
    ///
    /// # Errors
    /// [`Error::Type`] if there are none in it; what the device says.
    pub fn dequantise<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Tensor>> {
        let x = self.given("dequantise", x)?;
        let Type::Blocks(tensor_type) = x.kind else {
            return Err(Error::Type { operation: "dequantise", wanted: "blocks", got: x.kind });
        };
        let out = self.make(&x.shape)?;
        self.blocks(Kernel::DecodeBlocks, tensor_type, &x, out)
    }

    fn blocks(
        &self,
        kernel: Kernel,
        tensor_type: TensorType,
        x: &Tensor,
        out: Tensor,
    ) -> Result<Pending<Tensor>> {
        let blocks = x.shape.count()? / tensor_type.block_values();
        if blocks > 0 {
            self.shared.launch(kernel, 1, &[x, &out], &[tensor_type.gguf_id(), word(blocks)])?;
        }
        Ok(self.pending(out))
    }
}

/// The type of a tensor of blocks.
fn blocks_of(operation: &'static str, tensor_type: TensorType) -> Result<Type> {
    let element = match tensor_type {
        TensorType::F32 => ElementType::F32,
        TensorType::F16 => ElementType::F16,
        TensorType::BF16 => ElementType::BF16,
        _ => return Ok(Type::Blocks(tensor_type)),
    };
    Err(Error::Type { operation, wanted: "a type with blocks", got: Type::Elements(element) })
}
