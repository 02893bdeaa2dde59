//! Transfers of tensors between host and device, and conversions of types and layouts.

use super::device::Memory;
use super::error::{Error, Result};
use super::pending::Pending;
use super::tensor::{Input, Shape, Tensor, Type};
use super::{Compute, word};
use ragtag_kernels::elements::{self, RANK};
use ragtag_kernels::{ElementType, Kernel, TensorType};
use std::ops::Range;
use std::sync::Arc;

/// Sizes of the dimensions that a kernel iterates over, and the strides of each operand. The outermost
/// dimension comes first.
pub(super) struct Walk<const N: usize> {
    sizes: Vec<usize>,
    strides: [Vec<usize>; N],
}

impl<const N: usize> Walk<N> {
    /// Merges dimensions that are contiguous for all operands, and drops dimensions of size one.
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

    /// Returns the sizes and then the strides of each operand, padded to the number of dimensions that
    /// kernels support. Returns `None` if kernels support fewer dimensions than this walk has.
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

/// Returns the strides of a contiguous tensor with dimensions of these sizes.
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
    /// Uploads f32 values to a new tensor.
    ///
    /// # Errors
    /// Returns [`Error::Length`] if the number of values does not match the shape, or a device error.
    pub fn upload(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        let kind = Type::Elements(ElementType::F32);
        self.upload_as(shape.into(), kind, values.len(), |out| bytes_of(values, |v| v.to_le_bytes(), out))
    }

    /// Uploads 32-bit indices to a new tensor.
    ///
    /// # Errors
    /// Returns the errors of [`Compute::upload`].
    pub fn upload_indices(&self, shape: impl Into<Shape>, indices: &[u32]) -> Result<Tensor> {
        let fill = |out: &mut [u8]| bytes_of(indices, |v| v.to_le_bytes(), out);
        self.upload_as(shape.into(), Type::Indices, indices.len(), fill)
    }

    /// Uploads blocks in file format to a new tensor. Each row (along the last dimension) must consist of
    /// whole blocks.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Type`] if the type has no blocks.
    /// - [`Error::Blocks`] if a row does not consist of whole blocks.
    /// - [`Error::Length`] if the number of bytes does not match the shape.
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
                // Blocks and 16-bit values may end inside the last word.
                Ok(())
            })?;
        }
        Ok(tensor)
    }

    /// Returns a new tensor of f32 zeros.
    ///
    /// # Errors
    /// Returns [`Error::ZeroBytes`] if the tensor would have no values, because a device cannot allocate zero
    /// bytes.
    pub fn zeros(&self, shape: impl Into<Shape>) -> Result<Pending<Tensor>> {
        let tensor = self.make(shape)?;
        let memory =
            tensor.memory.as_ref().ok_or_else(|| Error::ZeroBytes { shape: tensor.shape.clone() })?;
        self.shared.fill(memory, 0)?;
        Ok(self.pending(tensor))
    }

    /// Downloads the values of a tensor as f32. The device first converts 16-bit values and dequantizes
    /// blocks.
    ///
    /// # Errors
    /// Returns [`Error::Type`] for a tensor of indices, or a device error.
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

    /// Downloads a tensor of indices.
    ///
    /// # Errors
    /// Returns [`Error::Type`] for tensors of other types, or a device error.
    pub fn read_indices<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Vec<u32>>> {
        let x = self.indices("read", x)?;
        self.download(x.memory.as_ref(), |bytes| {
            bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
        })
    }

    /// Downloads the bytes of a tensor exactly as device memory stores them. 16-bit values and blocks are
    /// adjacent, without padding between them.
    ///
    /// # Errors
    /// Returns an error if the device fails.
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

    /// Copies a tensor to newly allocated memory.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn copy<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Tensor>> {
        let x = self.given("copy", x)?;
        let out = self.shared.tensor(x.shape.clone(), x.kind)?;
        if let (Some(from), Some(to)) = (&x.memory, &out.memory) {
            self.shared.copy(from, to)?;
        }
        Ok(self.pending(out))
    }

    /// Converts values to the type `to`. Rounds to the nearest value, ties to even. Values beyond the range
    /// of `to` become infinite, and NaN is preserved.
    ///
    /// # Errors
    /// Returns [`Error::Type`] for indices and blocks, or a device error.
    pub fn cast<'a>(&self, x: impl Into<Input<'a>>, to: ElementType) -> Result<Pending<Tensor>> {
        let (x, from) = self.elements("cast", x)?;
        let sizes = x.shape.sizes().to_vec();
        self.walk("cast", &x, [from, to], 0, (&sizes, &contiguous(&sizes)))
    }

    /// Permutes the dimensions of `x`. Dimension i of the result is dimension `order[i]` of `x`.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Argument`] if `order` does not contain every dimension exactly once.
    /// - [`Error::Rank`] if more than six dimensions remain after contiguous dimensions are merged.
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

    /// Returns the part of a tensor that lies in a range of positions along an axis.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Axis`] if the axis does not exist.
    /// - [`Error::Argument`] if a position is outside the axis.
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

    /// Copies the values of `x` at strided positions to a new contiguous tensor, and converts their type.
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
            let rule = "at most six dimensions after merging contiguous ones";
            let shape = shape.ok_or_else(|| Error::Rank { operation, shape: x.shape.clone(), rule })?;
            let types = [elements::number(from), elements::number(to), word(first)];
            self.shared.launch(Kernel::Copy, 1, &[x, &out], &[types.as_slice(), &shape].concat())?;
        }
        Ok(self.pending(out))
    }

    /// Quantizes values to blocks in file format. Each row (along the last dimension) must consist of whole
    /// blocks.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Type`] if the type has no blocks.
    /// - [`Error::Blocks`] if a row does not consist of whole blocks.
    pub fn quantise<'a>(&self, x: impl Into<Input<'a>>, tensor_type: TensorType) -> Result<Pending<Tensor>> {
        let x = self.f32s("quantise", x)?;
        let kind = blocks_of("quantise", tensor_type)?;
        let out = self.shared.tensor(x.shape.clone(), kind)?;
        self.blocks(Kernel::EncodeBlocks, tensor_type, &x, out)
    }

    /// Dequantizes the blocks of a tensor to f32.
    ///
    /// # Errors
    /// Returns [`Error::Type`] if the tensor has no blocks, or a device error.
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

/// Returns the type of a tensor that holds blocks of `tensor_type`. Fails if `tensor_type` has no blocks, or
/// if no file stores them.
fn blocks_of(operation: &'static str, tensor_type: TensorType) -> Result<Type> {
    let wanted = "a type that files store as blocks";
    let element = match tensor_type {
        TensorType::F32 => ElementType::F32,
        TensorType::F16 => ElementType::F16,
        TensorType::BF16 => ElementType::BF16,
        _ if TensorType::in_gguf().any(|t| t == tensor_type) => return Ok(Type::Blocks(tensor_type)),
        _ => return Err(Error::Type { operation, wanted, got: Type::Blocks(tensor_type) }),
    };
    Err(Error::Type { operation, wanted, got: Type::Elements(element) })
}
