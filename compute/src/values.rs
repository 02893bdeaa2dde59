//! Elementwise operators, gathers and RoPE.

use super::error::{Error, Result};
use super::pending::Pending;
use super::products::same_type;
use super::storage::{Walk, contiguous};
use super::tensor::{Input, Shape, Tensor, Type};
use super::{Compute, word};
use ragtag_kernels::binary::Operation;
use ragtag_kernels::unary::Function;
use ragtag_kernels::{Kernel, elements, rope};

/// Pairing of the values in a head. RoPE rotates the two values of a pair together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Pairs the neighbouring values 2i and 2i + 1.
    Neighbours,
    /// Pairs the values i and i + dimensions / 2, one from each half.
    Halves,
}

/// Parameters of RoPE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the rotation angles. Pair i rotates by base^(−2i / dimensions) radians per position.
    pub base: f32,
    /// Number of values at the start of each head that RoPE rotates. `None` rotates all values.
    pub dimensions: Option<usize>,
    /// Pairing of the values.
    pub pairing: Pairing,
}

impl Default for Rope {
    /// Returns parameters with base 10,000 that rotate all values, paired by halves.
    fn default() -> Self {
        Self { base: 10_000.0, dimensions: None, pairing: Pairing::Halves }
    }
}

impl Compute {
    /// Applies `function` to each value. The result has the type of the input.
    ///
    /// # Errors
    /// Returns [`Error::Type`] for indices and blocks, or a device error.
    pub fn unary<'a>(&self, function: Function, x: impl Into<Input<'a>>) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("unary", x)?;
        let out = self.shared.tensor(&x.shape, x.kind)?;
        if out.memory.is_some() {
            let constants = [function as u32, elements::number(element), word(x.shape.count()?)];
            self.shared.launch(Kernel::Unary, 1, &[&x, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Applies a function to pairs of values from two tensors. The result has the type of the inputs. Shapes
    /// are aligned at their last dimensions. Missing dimensions and dimensions of size one are broadcast.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Shapes`] if the shapes cannot be broadcast.
    /// - [`Error::Rank`] if more than six dimensions remain after contiguous dimensions are merged.
    /// - [`Error::Argument`] if the types differ.
    pub fn binary<'a, 'b>(
        &self,
        operation: Operation,
        a: impl Into<Input<'a>>,
        b: impl Into<Input<'b>>,
    ) -> Result<Pending<Tensor>> {
        let ((a, of_a), (b, of_b)) = (self.elements("binary", a)?, self.elements("binary", b)?);
        let element = same_type("binary", &[of_a, of_b])?;
        let sizes = broadcast(&a.shape, &b.shape)?;
        let out = self.shared.tensor(sizes.as_slice(), a.kind)?;
        if out.memory.is_some() {
            let [strides_a, strides_b] = [&a, &b].map(|x| repeated(&x.shape, &sizes));
            let shape = Walk::new(&sizes, [&strides_a, &strides_b]).constants();
            let rule = "at most six dimensions after merging broadcast ones";
            let shape =
                shape.ok_or_else(|| Error::Rank { operation: "binary", shape: out.shape.clone(), rule })?;
            let constants = [&[operation as u32, elements::number(element)], shape.as_slice()].concat();
            self.shared.launch(Kernel::Binary, 1, &[&a, &b, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Returns the rows of a table that the indices select. A row is a slice of the table along its first
    /// dimension.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Index`] if an index among host values is out of range. The host cannot check indices in a
    ///   tensor, so the device returns zeros for rows that do not exist.
    /// - [`Error::Rank`] if the table has no dimensions.
    pub fn gather<'a, 'b>(
        &self,
        table: impl Into<Input<'a>>,
        indices: impl Into<Input<'b>>,
    ) -> Result<Pending<Tensor>> {
        let (table, element) = self.elements("gather", table)?;
        let Some((&rows, row)) = table.shape.sizes().split_first() else {
            let (operation, shape) = ("gather", table.shape);
            return Err(Error::Rank { operation, shape, rule: "a table must have rows" });
        };
        let indices = indices.into();
        if let Input::Indices(_, list) = &indices
            && let Some((place, &index)) = list.iter().enumerate().find(|(_, index)| **index as usize >= rows)
        {
            return Err(Error::Index { operation: "gather", index, place, rows });
        }
        let indices = self.indices("gather", indices)?;
        let shape = [indices.shape.sizes(), row].concat();
        let out = self.shared.tensor(shape, Type::Elements(element))?;
        if out.memory.is_some() {
            let number = elements::number(element);
            let (count, width) = (indices.shape.count()?, Shape::from(row).count()?);
            let constants = [number, number, word(count), word(rows), word(width)];
            self.shared.launch(Kernel::GatherRows, 1, &[&indices, &table, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Applies rotary position embedding to `[rows, heads, dimensions]`. The result has the type of the
    /// input. The position of a row determines the angles by which it is rotated.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Shapes`] if the number of positions is not the number of rows.
    /// - [`Error::Rank`] if the input does not have three dimensions.
    /// - [`Error::Factor`] if the base is not finite and positive.
    /// - [`Error::Argument`] if the number of rotated values is odd or exceeds the head dimension.
    pub fn rope<'a, 'b>(
        &self,
        rope: &Rope,
        x: impl Into<Input<'a>>,
        positions: impl Into<Input<'b>>,
    ) -> Result<Pending<Tensor>> {
        let (x, element) = self.elements("rope", x)?;
        let positions = self.indices("rope", positions)?;
        let &[rows, heads, head_dim] = x.shape.sizes() else {
            let (operation, shape) = ("rope", x.shape);
            return Err(Error::Rank { operation, shape, rule: "[rows, heads, dimensions]" });
        };
        if positions.shape.sizes() != [rows] {
            let (left, right) = (x.shape.clone(), positions.shape.clone());
            return Err(Error::Shapes { operation: "rope", left, right, rule: "one position for each row" });
        }
        super::positive("rope", "base", rope.base)?;
        let rotated = rope.dimensions.unwrap_or(head_dim);
        if rotated > head_dim || !rotated.is_multiple_of(2) {
            let what = format!("cannot rotate {rotated} values in pairs in heads of {}", x.shape);
            return Err(Error::Argument { operation: "rope", what });
        }
        let out = self.shared.tensor(&x.shape, x.kind)?;
        if out.memory.is_some() {
            let pairs = (0..rotated / 2).map(|i| -2.0 * i as f64 / rotated as f64);
            let turns: Vec<u32> =
                pairs.flat_map(|power| rope::turn(f64::from(rope.base).powf(power))).collect();
            let turns = self.upload_indices([rotated], &turns)?;
            let pairing = match rope.pairing {
                Pairing::Neighbours => rope::INTERLEAVED,
                Pairing::Halves => rope::HALVES,
            };
            let sizes = [rows, heads, head_dim, rotated].map(word);
            let constants = [&[elements::number(element)], sizes.as_slice(), &[pairing]].concat();
            self.shared.launch(Kernel::Rope, 1, &[&positions, &turns, &x, &out], &constants)?;
        }
        Ok(self.pending(out))
    }
}

/// Returns the sizes to which the shapes `a` and `b` are broadcast.
fn broadcast(a: &Shape, b: &Shape) -> Result<Vec<usize>> {
    let rank = a.rank().max(b.rank());
    let size = |shape: &Shape, i: usize| (i + shape.rank()).checked_sub(rank).map_or(1, |i| shape.sizes()[i]);
    let sizes = (0..rank).map(|i| match (size(a, i), size(b, i)) {
        (a, b) if a == b => Ok(a),
        (1, other) | (other, 1) => Ok(other),
        _ => {
            let (left, right) = (a.clone(), b.clone());
            let rule = "sizes must be equal or 1, aligned at the last dimension";
            Err(Error::Shapes { operation: "binary", left, right, rule })
        }
    });
    sizes.collect()
}

/// Returns the strides of `shape` when it is broadcast to `sizes`.
fn repeated(shape: &Shape, sizes: &[usize]) -> Vec<usize> {
    let own = contiguous(shape.sizes());
    let missing = sizes.len() - shape.rank();
    let strides = shape.sizes().iter().zip(own).map(|(size, stride)| if *size == 1 { 0 } else { stride });
    std::iter::repeat_n(0, missing).chain(strides).collect()
}
