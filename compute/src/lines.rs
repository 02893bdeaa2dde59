//! Operators along an axis: reductions, norms, softmax, and positions of the largest values.

use super::error::{Error, Result};
use super::pending::Pending;
use super::tensor::{Input, Shape, Tensor, Type};
use super::{Compute, around, positive, word};
use ragtag_kernels::reduce::{self, Reduction};
use ragtag_kernels::{Activations, ElementType, Kernel, elements, top_k};
use std::sync::Arc;

impl Compute {
    /// Reduces each line of values along an axis to one f32, and removes the axis from the shape. If there
    /// are only a few long lines, the reduction needs two kernel launches.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Axis`] if the axis does not exist.
    /// - [`Error::EmptyAxis`] for the maximum, minimum or mean of an empty axis. (The sum of an empty axis is
    ///   zero.)
    pub fn reduce<'a>(
        &self,
        reduction: Reduction,
        x: impl Into<Input<'a>>,
        axis: usize,
    ) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("reduce", x)?;
        let [outer, size, inner] = around("reduce", &x.shape, axis)?;
        let mut sizes = x.shape.sizes().to_vec();
        sizes.remove(axis);
        let out = self.make(sizes)?;
        match (&out.memory, size, reduction) {
            (None, ..) => {}
            (Some(memory), 0, Reduction::Sum) => _ = self.shared.fill(memory, 0)?,
            (Some(_), 0, _) => {
                return Err(Error::EmptyAxis { operation: "reduce", axis, shape: x.shape });
            }
            (Some(_), ..) => self.reduce_lines(reduction, &x, element, [outer, size, inner], &out)?,
        }
        Ok(self.pending(out))
    }

    fn reduce_lines(
        &self,
        reduction: Reduction,
        x: &Tensor,
        element: ElementType,
        shape: [usize; 3],
        out: &Tensor,
    ) -> Result<()> {
        let [outer, axis, inner] = shape.map(word);
        let launch = |reduction: Reduction, x: &Tensor, element, axis, part, out: &Tensor| {
            let of = [reduction as u32, elements::number(element), outer, axis, inner, part, word(shape[1])];
            self.shared.launch(Kernel::Reduce, 1, &[x, out], &of)
        };
        let part = reduce::part([outer, axis, inner]);
        let parts = axis.div_ceil(part);
        if parts == 1 {
            launch(reduction, x, element, axis, part, out)?;
            return Ok(());
        }
        let some = self.make([shape[0], parts as usize, shape[2]])?;
        let first = if reduction == Reduction::Mean { Reduction::Sum } else { reduction };
        launch(first, x, element, axis, part, &some)?;
        launch(reduction, &some, ElementType::F32, parts, parts, out)?;
        Ok(())
    }

    /// Computes softmax along an axis. The result is f32: e^(x − largest), divided by the sum of these terms
    /// over the line. A value of −∞ gets probability zero. If a line contains only −∞, all its results are
    /// zero. If a line contains NaN or +∞, all its results are NaN.
    ///
    /// # Errors
    /// Returns [`Error::Axis`] if the axis does not exist, or a device error.
    pub fn softmax<'a>(&self, x: impl Into<Input<'a>>, axis: usize) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("softmax", x)?;
        let [outer, size, inner] = around("softmax", &x.shape, axis)?.map(word);
        let out = self.make(&x.shape)?;
        if out.memory.is_some() {
            let constants = [elements::number(element), outer, size, inner];
            self.shared.launch(Kernel::SoftmaxAxis, 1, &[&x, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Divides each row (along the last dimension) by its root mean square, and multiplies each column by its
    /// weight. ε is added to the mean square.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Shapes`] if the number of weights is not the number of columns.
    /// - [`Error::Factor`] if ε is not finite and positive.
    pub fn rms_norm<'a, 'b>(
        &self,
        x: impl Into<Input<'a>>,
        weight: impl Into<Input<'b>>,
        epsilon: f32,
    ) -> Result<Pending<Tensor>> {
        let [x, weight] = [self.f32s("rms_norm", x)?, self.f32s("rms_norm", weight)?];
        let (rows, width) = columns("rms_norm", &x, [&weight])?;
        positive("rms_norm", "ε", epsilon)?;
        let out = self.make(&x.shape)?;
        if out.memory.is_some() {
            let kernel = Kernel::RmsNorm(Activations::F32);
            let constants = [word(rows), 0, word(width), epsilon.to_bits()];
            self.shared.launch(kernel, word(rows), &[&self.counts(rows)?, &x, &weight, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Normalizes each row (along the last dimension) to mean 0 and standard deviation 1. Then multiplies
    /// each column by its weight and adds its bias. ε is added to the variance.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Shapes`] if the number of weights or biases is not the number of columns.
    /// - [`Error::Factor`] if ε is not finite and positive.
    pub fn layer_norm<'a, 'b, 'c>(
        &self,
        x: impl Into<Input<'a>>,
        weight: impl Into<Input<'b>>,
        bias: impl Into<Input<'c>>,
        epsilon: f32,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "layer_norm";
        let (x, element) = self.elements(NAME, x)?;
        let [weight, bias] = [self.f32s(NAME, weight)?, self.f32s(NAME, bias)?];
        let (rows, width) = columns(NAME, &x, [&weight, &bias])?;
        positive(NAME, "ε", epsilon)?;
        let out = self.make(&x.shape)?;
        if out.memory.is_some() {
            let constants = [elements::number(element), word(rows), word(width), epsilon.to_bits()];
            self.shared.launch(Kernel::LayerNorm, 1, &[&x, &weight, &bias, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Returns the position of the largest value in each row (along the last dimension). In a tie, returns
    /// the first position. NaN ranks below every number.
    ///
    /// # Errors
    /// Returns [`Error::EmptyAxis`] if rows have no values, or a device error.
    pub fn arg_max<'a>(&self, x: impl Into<Input<'a>>) -> Result<Pending<Tensor>> {
        let x = self.f32s("arg_max", x)?;
        let (sizes, width) = x.shape.rows();
        let out = self.shared.tensor(sizes, Type::Indices)?;
        if out.memory.is_some() {
            if width == 0 {
                let axis = x.shape.rank() - 1;
                return Err(Error::EmptyAxis { operation: "arg_max", axis, shape: x.shape });
            }
            let rows = Shape::from(sizes).count()?;
            let counts = self.counts(rows)?;
            self.shared.launch(
                Kernel::ArgMax,
                word(rows),
                &[&counts, &x, &out],
                &[word(rows), 0, word(width)],
            )?;
        }
        Ok(self.pending(out))
    }

    /// Returns the `k` largest values in each row (along the last dimension) in descending order, and their
    /// positions. Equal values keep their order. NaN ranks below every number.
    ///
    /// # Errors
    /// Returns [`Error::Argument`] if `k` is zero, greater than 64, or greater than the length of a row.
    /// Returns a device error if the device fails.
    pub fn top_k<'a>(&self, x: impl Into<Input<'a>>, k: usize) -> Result<Pending<(Tensor, Tensor)>> {
        let x = self.f32s("top_k", x)?;
        let (sizes, width) = x.shape.rows();
        if k == 0 || k > width || k > top_k::MAX_K as usize {
            let what = format!("k of {k} for rows of {} (valid: 1 to {})", x.shape, width.min(64));
            return Err(Error::Argument { operation: "top_k", what });
        }
        let shape = Shape::from([sizes, &[k]].concat());
        let (values, indices) = (self.make(&shape)?, self.shared.tensor(&shape, Type::Indices)?);
        if values.memory.is_some() {
            let rows = Shape::from(sizes).count()?;
            let constants = [word(rows), 0, word(width), word(k)];
            let counts = self.counts(rows)?;
            self.shared.launch(Kernel::TopK, word(rows), &[&counts, &x, &values, &indices], &constants)?;
        }
        Ok(self.pending((values, indices)))
    }

    /// Returns a parameter block that contains the row count. The kernels that also serve compiled models
    /// read the count from it.
    pub(super) fn counts(&self, rows: usize) -> Result<Tensor> {
        let counts = self.shared.tensor([4], Type::Indices)?;
        if let Some(memory) = &counts.memory {
            self.shared.fill(&Arc::clone(memory), word(rows))?;
        }
        Ok(counts)
    }
}

/// Returns the numbers of rows and columns of `x`. Checks that each tensor in `of_columns` has one value per
/// column.
fn columns<const N: usize>(
    operation: &'static str,
    x: &Tensor,
    of_columns: [&Tensor; N],
) -> Result<(usize, usize)> {
    let (sizes, width) = x.shape.rows();
    if let Some(other) = of_columns.iter().find(|other| other.shape.sizes() != [width]) {
        let (left, right) = (x.shape.clone(), other.shape.clone());
        return Err(Error::Shapes { operation, left, right, rule: "one value for each column" });
    }
    Ok((Shape::from(sizes).count()?, width))
}
