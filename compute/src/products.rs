//! Matrix products, products with quantised weights, and attention.

use super::error::{Error, Result};
use super::pending::Pending;
use super::storage::contiguous;
use super::tensor::{Input, Shape, Tensor, Type};
use super::{Compute, positive, word};
use ragtag_kernels::{
    Activations, ElementType, Kernel, NumericsClass, Resident, TensorType, gemm, layout_for,
};

/// Parameters of a matrix product α · op(A) · op(B), where op optionally transposes a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Whether op transposes A. If it does, A has the shape `[…, k, m]`.
    pub transpose_a: bool,
    /// Whether op transposes B. If it does, B has the shape `[…, n, k]`.
    pub transpose_b: bool,
    /// Factor α of the product.
    pub alpha: f32,
}

impl Default for Gemm {
    /// Returns the parameters of the product A · B: no transposition, and α = 1.
    fn default() -> Self {
        Self { transpose_a: false, transpose_b: false, alpha: 1.0 }
    }
}

/// Layout of the matrices in a batch of products. All sizes and distances are in values. The layout follows
/// BLAS, but with row-major matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// Sizes m, n and k: op(A) is m × k, op(B) is k × n, and C is m × n.
    pub sizes: [usize; 3],
    /// Number of products.
    pub batch: usize,
    /// Leading dimensions of A, B and C: the distance from the start of a row to the start of the next.
    pub leading: [usize; 3],
    /// Distances between consecutive matrices of the batch, for A, B and C. The distance is 0 for a matrix
    /// that all products share.
    pub strides: [usize; 3],
}

/// Parameters of attention: the positions that each query attends to, and the scaling of scores. With m
/// queries and n keys, query i has position i + n − m.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// Whether a query attends only to its own position and to earlier positions.
    pub causal: bool,
    /// Window size in positions. If it is set, a query attends only to positions whose distance from its own
    /// position is smaller.
    pub window: Option<usize>,
    /// Number of positions at the start of the sequence that every query attends to.
    pub prefix: usize,
    /// Factor by which scores are multiplied. If it is `None`, the factor is 1 / √d.
    pub scale: Option<f32>,
    /// Cap of the scores. If it is set, a score s becomes cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
}

/// Weight matrix of any tensor type, packed for the device's matrix products.
#[derive(Clone, Debug)]
pub struct Weights {
    resident: Resident,
    packed: Tensor,
}

impl Weights {
    /// Returns the number of rows. Each row produces one column of the product.
    pub fn rows(&self) -> usize {
        self.resident.rows()
    }

    /// Returns the number of columns, that is, of values in a row.
    pub fn columns(&self) -> usize {
        self.resident.columns()
    }

    /// Returns the tensor type from which the weights were packed.
    pub fn tensor_type(&self) -> TensorType {
        self.resident.tensor_type()
    }
}

/// Returns the batch sizes of a tensor, and the rows and columns of its matrices. The batch sizes are empty
/// for a single matrix.
fn matrices(operation: &'static str, x: &Tensor) -> Result<(Vec<usize>, [usize; 2])> {
    match x.shape.sizes() {
        [batch @ .., rows, columns] => Ok((batch.to_vec(), [*rows, *columns])),
        _ => {
            let shape = x.shape.clone();
            Err(Error::Rank { operation, shape, rule: "at least rows and columns" })
        }
    }
}

pub(super) fn shapes(operation: &'static str, left: &Tensor, right: &Tensor, rule: &'static str) -> Error {
    Error::Shapes { operation, left: left.shape.clone(), right: right.shape.clone(), rule }
}

/// Returns the element type that all inputs of an operator share. Returns an error if the types differ.
pub(super) fn same_type(operation: &'static str, types: &[ElementType]) -> Result<ElementType> {
    match types.iter().find(|other| **other != types[0]) {
        None => Ok(types[0]),
        Some(other) => {
            let what = format!("mixed types {} and {other}; cast one of them", types[0]);
            Err(Error::Argument { operation, what })
        }
    }
}

/// Checks that the two factors of a product are finite.
fn finite(operation: &'static str, factors: [f32; 2]) -> Result<()> {
    match factors.into_iter().find(|factor| !factor.is_finite()) {
        None => Ok(()),
        Some(factor) => Err(Error::Argument { operation, what: format!("factor {factor} is not finite") }),
    }
}

impl Strided {
    /// Returns the kernel constants that describe this layout.
    fn constants(&self, gemm: &Gemm, beta: f32) -> [u32; 14] {
        let ([m, n, k], [lda, ldb, ldc]) = (self.sizes.map(word), self.leading.map(word));
        let [stride_a, stride_b, stride_c] = self.strides.map(word);
        let [transpose_a, transpose_b] = [gemm.transpose_a, gemm.transpose_b].map(u32::from);
        let [alpha, beta] = [gemm.alpha, beta].map(f32::to_bits);
        let batch = word(self.batch);
        [m, n, k, transpose_a, transpose_b, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, alpha, beta]
    }
}

impl Compute {
    /// Computes α · op(A) · op(B) for matrices or batches of matrices. The result is f32. If only one of A
    /// and B is a batch, all products share the other matrix.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Shapes`] if the columns of op(A) do not match the rows of op(B), or if the batches differ.
    /// - [`Error::Rank`] if a tensor is not a matrix.
    /// - [`Error::Argument`] if the types differ or a factor is not finite.
    pub fn gemm<'a, 'b>(
        &self,
        gemm: &Gemm,
        a: impl Into<Input<'a>>,
        b: impl Into<Input<'b>>,
    ) -> Result<Pending<Tensor>> {
        self.product(gemm, (a.into(), b.into()), None)
    }

    /// Computes α · op(A) · op(B) + β · C. The result is f32.
    ///
    /// # Errors
    /// Returns the errors of [`Compute::gemm`]. Also returns [`Error::Shapes`] if the shape of C is not that
    /// of the product.
    pub fn gemm_plus<'a, 'b, 'c>(
        &self,
        gemm: &Gemm,
        a: impl Into<Input<'a>>,
        b: impl Into<Input<'b>>,
        beta: f32,
        c: impl Into<Input<'c>>,
    ) -> Result<Pending<Tensor>> {
        self.product(gemm, (a.into(), b.into()), Some((beta, c.into())))
    }

    fn product(
        &self,
        gemm: &Gemm,
        (a, b): (Input<'_>, Input<'_>),
        onto: Option<(f32, Input<'_>)>,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "gemm";
        let ((a, of_a), (b, of_b)) = (self.elements(NAME, a)?, self.elements(NAME, b)?);
        let element = same_type(NAME, &[of_a, of_b])?;
        let ((batch_a, [rows_a, lda]), (batch_b, [rows_b, ldb])) = (matrices(NAME, &a)?, matrices(NAME, &b)?);
        let [m, k] = if gemm.transpose_a { [lda, rows_a] } else { [rows_a, lda] };
        let [k_of_b, n] = if gemm.transpose_b { [ldb, rows_b] } else { [rows_b, ldb] };
        if k != k_of_b {
            return Err(shapes(NAME, &a, &b, "the first needs as many columns as the second has rows"));
        }
        if !batch_a.is_empty() && !batch_b.is_empty() && batch_a != batch_b {
            return Err(shapes(NAME, &a, &b, "batches must be equal, or one shared"));
        }
        let (shared_a, shared_b) = (batch_a.is_empty(), batch_b.is_empty());
        let batch = if shared_a { batch_b } else { batch_a };
        let shape = Shape::from([batch.as_slice(), &[m, n]].concat());
        let (out, beta) = match onto {
            None => (self.make(&shape)?, 0.0),
            Some((beta, c)) => {
                let c = self.f32s(NAME, c)?;
                if c.shape != shape {
                    let (left, right) = (c.shape, shape);
                    return Err(Error::Shapes {
                        operation: NAME,
                        left,
                        right,
                        rule: "C must have the shape of the product",
                    });
                }
                (self.copy(&c)?.queued().clone(), beta)
            }
        };
        finite(NAME, [gemm.alpha, beta])?;
        if out.memory.is_some() {
            let stride = |shared: bool, size: usize| if shared { 0 } else { size };
            let strided = Strided {
                sizes: [m, n, k],
                batch: Shape::from(batch).count()?,
                leading: [lda, ldb, n],
                strides: [stride(shared_a, rows_a * lda), stride(shared_b, rows_b * ldb), m * n],
            };
            let constants = strided.constants(gemm, beta);
            self.shared.launch(Kernel::Gemm(element), word(m), &[&a, &b, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Computes α · op(A) · op(B) + β · C for matrices that are parts of tensors of any shape. The result has
    /// the shape of C. Values of C outside the matrices are copied to the result. As in BLAS, α = 0 or β = 0
    /// omits its term, even if an operand contains NaN.
    ///
    /// # Errors
    /// Returns a device error, or [`Error::Argument`] in these cases:
    /// - A matrix exceeds its tensor.
    /// - Rows of C overlap.
    /// - The types of A and B differ.
    /// - A factor is not finite.
    pub fn gemm_strided<'a, 'b, 'c>(
        &self,
        gemm: &Gemm,
        strided: &Strided,
        a: impl Into<Input<'a>>,
        b: impl Into<Input<'b>>,
        beta: f32,
        c: impl Into<Input<'c>>,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "gemm_strided";
        let ((a, of_a), (b, of_b)) = (self.elements(NAME, a)?, self.elements(NAME, b)?);
        let (element, c) = (same_type(NAME, &[of_a, of_b])?, self.f32s(NAME, c)?);
        finite(NAME, [gemm.alpha, beta])?;
        let constants = strided.constants(gemm, beta);
        let mut reach = [0; 3];
        (gemm::abi(element).extents)(&constants, &mut reach);
        for (tensor, reach) in [&a, &b, &c].into_iter().zip(reach) {
            if reach > tensor.kind.bytes(&tensor.shape)? {
                let what = format!("{strided:?} does not fit {}, {} and {}", a.shape, b.shape, c.shape);
                return Err(Error::Argument { operation: NAME, what });
            }
        }
        let out = self.copy(&c)?.queued().clone();
        if reach[2] > 0 {
            self.shared.launch(Kernel::Gemm(element), word(strided.sizes[0]), &[&a, &b, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Packs `[rows, columns]` weights from file format into the layout of the device's matrix products.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Blocks`] if a row does not consist of whole blocks, or if its length is not a multiple of
    ///   32.
    /// - [`Error::Length`] if the number of bytes does not match the shape.
    pub fn weights(
        &self,
        tensor_type: TensorType,
        [rows, columns]: [usize; 2],
        blocks: &[u8],
    ) -> Result<Weights> {
        let shape = Shape::from([rows, columns]);
        let layout = layout_for(tensor_type, self.shared.caps());
        let no_blocks = |_| Error::Blocks { tensor_type, shape: shape.clone() };
        let resident = Resident::new(tensor_type, layout, rows as u64, columns as u64).map_err(no_blocks)?;
        if blocks.len() as u64 != rows as u64 * resident.file_row_bytes() as u64 {
            let values = blocks.len() / tensor_type.block_bytes() * tensor_type.block_values();
            return Err(Error::Length { values, shape });
        }
        let memory = self.shared.allocate(resident.bytes())?;
        if let Some(memory) = &memory {
            self.shared.upload(memory, |out| {
                let packed = resident.pack(0..resident.groups(), blocks, out);
                packed.map_err(|error| Error::Argument { operation: "weights", what: error.to_string() })
            })?;
        }
        Ok(Weights { resident, packed: Tensor { shape, kind: Type::Blocks(tensor_type), memory } })
    }

    /// Computes the product x · Wᵀ of rows `x` with weights W. The result is f32 and has the shape
    /// `[…, rows of W]`. The exact class uses f32 activations unchanged. The fast class quantizes the rows of
    /// `x` to 8 bits if the weights have integer quants.
    ///
    /// # Errors
    /// Returns [`Error::Shapes`] if the rows of `x` do not match the columns of the weights, or a device
    /// error.
    pub fn matmul_quantised<'a>(
        &self,
        weights: &Weights,
        x: impl Into<Input<'a>>,
        class: NumericsClass,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "matmul_quantised";
        let x = self.f32s(NAME, x)?;
        let packed = self.given(NAME, &weights.packed)?;
        let (sizes, k) = x.shape.rows();
        if k != weights.columns() {
            return Err(shapes(NAME, &x, &packed, "rows must have equal lengths"));
        }
        let rows = Shape::from(sizes).count()?;
        let out = self.make([sizes, &[weights.rows()]].concat())?;
        if out.memory.is_some() {
            let (tensor_type, n) = (weights.tensor_type(), word(weights.rows()));
            let is_fast = class == NumericsClass::Fast && tensor_type.has_integer_quants();
            let counts = self.counts(rows)?;
            let (activations, x) = if is_fast {
                let bytes = rows * Activations::Int8.row_bytes(k);
                let memory = self.shared.allocate(bytes as u64)?;
                let quanta = Tensor { memory, ..x.clone() };
                let kernel = Kernel::Quantize(Activations::Int8);
                let constants = [word(rows), 0, word(k)];
                self.shared.launch(kernel, word(rows), &[&counts, &x, &quanta], &constants)?;
                (Activations::Int8, quanta)
            } else {
                (Activations::F32, x)
            };
            let kernel = Kernel::MatMul(tensor_type, activations);
            let constants = [word(rows), 0, n, word(k), 0, n];
            self.shared.launch(kernel, word(rows), &[&counts, &packed, &x, &out], &constants)?;
        }
        Ok(self.pending(out))
    }

    /// Computes attention of queries `[batch, heads, m, d]` over keys and values `[batch, kv heads, n, d]`.
    /// The result is f32 in the shape of the queries. Query heads form equal groups, and the heads of a group
    /// share a KV head. A query that attends to no position yields zeros.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Rank`] or [`Error::Shapes`] if the operator does not accept the shapes.
    /// - [`Error::Factor`] if the scale or the cap is not finite and positive.
    /// - [`Error::Argument`] if the window is empty or the types differ.
    pub fn attention<'a, 'b, 'c>(
        &self,
        attention: &Attention,
        queries: impl Into<Input<'a>>,
        keys: impl Into<Input<'b>>,
        values: impl Into<Input<'c>>,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "attention";
        let ((q, of_q), (k, of_k)) = (self.elements(NAME, queries)?, self.elements(NAME, keys)?);
        let (v, of_v) = self.elements(NAME, values)?;
        let element = same_type(NAME, &[of_q, of_k, of_v])?;
        let (&[batch, heads, m, d], &[k_batch, kv_heads, n, k_d]) = (q.shape.sizes(), k.shape.sizes()) else {
            let shape = if q.shape.rank() == 4 { k.shape } else { q.shape };
            return Err(Error::Rank { operation: NAME, shape, rule: "[batch, heads, rows, dimensions]" });
        };
        if k.shape != v.shape {
            return Err(shapes(NAME, &k, &v, "keys and values must have equal shapes"));
        }
        if (batch, d) != (k_batch, k_d) || (heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads))) {
            return Err(shapes(
                NAME,
                &q,
                &k,
                "batches and dimensions must be equal, heads a multiple of kv heads",
            ));
        }
        let scale = attention.scale.unwrap_or(1.0 / (d.max(1) as f32).sqrt());
        positive(NAME, "scale", scale)?;
        attention.soft_cap.map_or(Ok(()), |cap| positive(NAME, "soft cap", cap))?;
        if attention.window == Some(0) {
            return Err(Error::Argument { operation: NAME, what: "the window must not be empty".into() });
        }
        let out = self.make(&q.shape)?;
        if out.memory.is_some() {
            let mut constants = vec![batch, heads, kv_heads, m, n, d];
            for tensor in [&q, &k, &v, &out] {
                constants.extend(&contiguous(tensor.shape.sizes())[..3]);
            }
            let mut constants: Vec<u32> = constants.into_iter().map(word).collect();
            constants.extend([scale.to_bits(), attention.soft_cap.unwrap_or(0.0).to_bits()]);
            let window = attention.window.unwrap_or(0);
            constants.extend([u32::from(attention.causal), word(window), word(attention.prefix)]);
            self.shared.launch(Kernel::AttentionDense(element), word(m), &[&q, &k, &v, &out], &constants)?;
        }
        Ok(self.pending(out))
    }
}
