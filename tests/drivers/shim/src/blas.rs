//! Implements the only rocBLAS matrix product that Ragtag calls. A kernel in the common C-like language
//! computes the product, so that each engine can compile it.

use crate::settings::visible;
use crate::symbols::Handle;
use crate::symbols::blas::{F16, F32, NONE, NOT_IMPLEMENTED, STANDARD, TRANSPOSE};
use crate::symbols::code::{INVALID_IMAGE, INVALID_VALUE};
use crate::{Engine, Result, Shape};
use std::sync::Mutex;

/// Prelude of the kernel. Its last line marks the end of the prelude, which engines may replace.
const PRELUDE: &str = include_str!("../../../../kernels/src/c_family/prelude.cu");
const KERNEL: &str = include_str!("gemm.cl");
/// Number of work items per group.
const ITEMS: u32 = 256;

/// Object to which a rocBLAS handle points.
pub(crate) struct Blas<E: Engine> {
    function: E::Function,
    _module: E::Module,
    /// Address of the stream object on which products run, or 0 before a stream is set.
    stream: Mutex<usize>,
}

/// Arguments of a product of column-major matrices.
pub(crate) struct Product {
    /// rocBLAS codes, in this order: the transpositions of A and B, the types of A, B, C, D and the
    /// accumulator, and the algorithm.
    pub(crate) kinds: [i32; 8],
    /// Sizes m, n and k of the product.
    pub(crate) sizes: [i32; 3],
    /// Leading dimensions of A, B, C, D.
    pub(crate) pitches: [i32; 4],
    /// The scalars α and β.
    pub(crate) factors: [f32; 2],
    /// Addresses of A, B, C and D.
    pub(crate) matrices: [Handle; 4],
}

impl<E: Engine> Blas<E> {
    pub(crate) fn new(engine: &E, device: usize) -> Result<Self> {
        let text = format!("{PRELUDE}\n{KERNEL}");
        let compiled = engine.compile(&visible(engine.devices().len()), &text, &[]);
        let (signatures, code) = compiled.map_err(|_| INVALID_IMAGE)?;
        let module = engine.load(device, signatures, &code)?;
        Ok(Self { function: engine.function(&module, c"gemm")?, _module: module, stream: Mutex::new(0) })
    }

    pub(crate) fn set_stream(&self, stream: Handle) -> Result<()> {
        *self.stream.lock().map_err(|_| INVALID_VALUE)? = stream as usize;
        Ok(())
    }

    /// Enqueues the only supported product: D = α · Aᵀ · B + β · D, with f16 inputs and f32 outputs.
    ///
    /// # Safety
    /// The stream must be alive, and the matrices must be valid until the product has ended.
    pub(crate) unsafe fn product(&self, engine: &E, product: &Product) -> Result<()> {
        let Product { kinds, sizes, pitches, factors, matrices } = product;
        if *kinds != [TRANSPOSE, NONE, F16, F16, F32, F32, F32, STANDARD] {
            return Err(NOT_IMPLEMENTED);
        }
        let [a, b, c, d] = *matrices;
        let [lda, ldb, ldc, ldd] = *pitches;
        let [m, n, k] = *sizes;
        if c != d || ldc != ldd || [m, n, k].iter().any(|size| *size < 1) || lda < k || ldb < k || ldd < m {
            return Err(INVALID_VALUE);
        }
        let stream = *self.stream.lock().map_err(|_| INVALID_VALUE)?;
        // SAFETY: the caller guarantees that the stream is alive.
        let stream = unsafe { (stream as *const E::Stream).as_ref() }.ok_or(INVALID_VALUE)?;
        let groups = (m.unsigned_abs()).checked_mul(n.unsigned_abs()).ok_or(INVALID_VALUE)?.div_ceil(ITEMS);
        let shape = Shape { grid: [groups, 1, 1], block: [ITEMS, 1, 1], shared_bytes: 0 };
        let addresses = [a, b, d].map(|address| address as usize as u64);
        let words = [m, n, k, lda, ldb, ldd].map(|size| u64::from(size.unsigned_abs()));
        let factors = factors.map(|factor| u64::from(factor.to_bits()));
        let values: Vec<u64> = [&addresses[..], &words, &factors].concat();
        let pointers: Vec<Handle> =
            values.iter().map(|value| std::ptr::from_ref(value).cast_mut().cast()).collect();
        engine.launch(stream, &self.function, &shape, pointers.as_ptr())
    }
}
