//! General operators that process lines of values along an axis.

use super::HostKernel;
use super::elements::Element;
use super::isa::Isa;
use crate::abi::array;
use crate::elements::ITEMS;
use crate::kernel::Kernel;
use crate::reduce::{self, Reduction, columns};
use crate::{checksum, layer_norm, softmax_axis};
use half::{bf16, f16};
use ragtag_hal::HostCall;
use std::ops::Range;

/// Maximum number of columns per group.
const MAX_COLUMNS: usize = ITEMS as usize;

/// Calls `$function` for the element type with number `$kind`.
macro_rules! by_type {
    ($kind:expr, $function:ident($($argument:expr),*)) => {
        match $kind {
            0 => $function::<f32>($($argument),*),
            1 => $function::<f16>($($argument),*),
            _ => $function::<bf16>($($argument),*),
        }
    };
}

/// The part of `[outer, axis, inner]` that one group processes.
struct Strip {
    /// Number of values of the part along the axis.
    axis: usize,
    inner: usize,
    /// Index in x of the first value in the first column.
    start: usize,
    /// Index in `[outer, parts, inner]` of the result of the first column.
    line: usize,
    columns: usize,
}

impl Strip {
    /// Returns the part for group `group`. The grid has one group per outer index, column strip and part of
    /// the axis. A part has `of_axis` values.
    #[inline(always)]
    fn new([outer, axis, inner]: [u32; 3], of_axis: u32, group: u32) -> Self {
        let strips = inner.div_ceil(columns(inner));
        let column = group / outer % strips * columns(inner);
        let columns = columns(inner).min(inner - column) as usize;
        let (part, parts) = ((group / outer / strips) as usize, axis.div_ceil(of_axis) as usize);
        let [outer, axis, inner, column] = [group % outer, axis, inner, column].map(|n| n as usize);
        let first = part * of_axis as usize;
        Self {
            axis: (of_axis as usize).min(axis - first),
            inner,
            start: (outer * axis + first) * inner + column,
            line: (outer * parts + part) * inner + column,
            columns,
        }
    }

    /// Returns the index range of the values of all columns, for each position along the axis.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = Range<usize>> + use<'_> {
        (0..self.axis).map(|i| self.start + i * self.inner..self.start + i * self.inner + self.columns)
    }

    /// Folds the values of each column with `step`, starting from `first`. `step` receives the index of the
    /// column, the result so far, and the next value.
    #[inline(always)]
    fn fold<E: Element>(
        &self,
        x: &[E],
        first: f64,
        step: impl Fn(usize, f64, f32) -> f64,
    ) -> [f64; MAX_COLUMNS] {
        let mut out = [first; MAX_COLUMNS];
        for row in self.rows() {
            for (column, (out, x)) in out.iter_mut().zip(&x[row]).enumerate() {
                *out = step(column, *out, x.value());
            }
        }
        out
    }
}

/// Returns the larger value, or NaN if either value is NaN.
#[inline(always)]
fn larger(a: f64, b: f32) -> f64 {
    let b = f64::from(b);
    if a > b || a.is_nan() { a } else { b }
}

/// Returns the smaller value, or NaN if either value is NaN.
#[inline(always)]
fn smaller(a: f64, b: f32) -> f64 {
    let b = f64::from(b);
    if a < b || a.is_nan() { a } else { b }
}

/// Reduces each line to one value.
pub(crate) struct Reduce;

impl HostKernel for Reduce {
    const KERNEL: Kernel = Kernel::Reduce;

    fn grid(constants: &[u32]) -> [u32; 3] {
        reduce::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { by_type!(call.constants[1], reduce(call, groups)) }
    }
}

/// Computes [`Reduce`] for values of type `E`.
///
/// # Safety
/// The requirements of [`HostKernel::run`] apply.
#[inline(always)]
unsafe fn reduce<E: Element>(call: &HostCall<'_>, groups: Range<u32>) {
    let [reduction, _, outer, axis, inner, of_axis, count] = array(call.constants);
    let reduction = Reduction::ALL[reduction as usize];
    // SAFETY: no thread writes this binding; all bit patterns are valid values.
    let x = unsafe { call.read::<E>(0) };
    for group in groups {
        let part = Strip::new([outer, axis, inner], of_axis, group);
        let sums = || part.fold(x, 0.0, |_, sum, x| sum + f64::from(x));
        let values = match reduction {
            Reduction::Sum => sums(),
            Reduction::Mean => sums().map(|sum| sum / f64::from(count)),
            Reduction::Max => part.fold(x, f64::NEG_INFINITY, |_, a, b| larger(a, b)),
            Reduction::Min => part.fold(x, f64::INFINITY, |_, a, b| smaller(a, b)),
        };
        // SAFETY: each group writes its own columns.
        let out = unsafe { call.write::<f32>(1, part.line..part.line + part.columns) };
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value as f32);
    }
}

/// Softmax along an axis.
pub(crate) struct SoftmaxAxis;

impl HostKernel for SoftmaxAxis {
    const KERNEL: Kernel = Kernel::SoftmaxAxis;

    fn grid(constants: &[u32]) -> [u32; 3] {
        softmax_axis::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { by_type!(call.constants[0], softmax(call, groups)) }
    }
}

/// Computes [`SoftmaxAxis`] for values of type `E`.
///
/// # Safety
/// The requirements of [`HostKernel::run`] apply.
#[inline(always)]
unsafe fn softmax<E: Element>(call: &HostCall<'_>, groups: Range<u32>) {
    let [_, outer, axis, inner] = array(call.constants);
    // SAFETY: no thread writes this binding; all bit patterns are valid values.
    let x = unsafe { call.read::<E>(0) };
    for group in groups {
        let part = Strip::new([outer, axis, inner], axis, group);
        let largest = part.fold(x, f64::NEG_INFINITY, |_, a, b| larger(a, b)).map(|largest| match largest {
            f64::INFINITY => f32::NAN,
            f64::NEG_INFINITY => 0.0, // All scores are −∞: the result is zero.
            largest => largest as f32,
        });
        let weight = |column: usize, x: f32| (x - largest[column]).exp();
        let sums = part.fold(x, 0.0, |column, sum, x| sum + f64::from(weight(column, x)));
        for row in part.rows() {
            // SAFETY: each group writes its own columns.
            let out = unsafe { call.write::<f32>(1, row.clone()) };
            for (column, (out, x)) in out.iter_mut().zip(&x[row]).enumerate() {
                let sum = sums[column] as f32;
                *out = if sum == 0.0 { 0.0 } else { weight(column, x.value()) / sum };
            }
        }
    }
}

/// Layer norm of rows.
pub(crate) struct LayerNorm;

impl HostKernel for LayerNorm {
    const KERNEL: Kernel = Kernel::LayerNorm;

    fn grid(constants: &[u32]) -> [u32; 3] {
        layer_norm::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { by_type!(call.constants[0], norm(call, groups)) }
    }
}

/// Computes [`LayerNorm`] for values of type `E`.
///
/// # Safety
/// The requirements of [`HostKernel::run`] apply.
#[inline(always)]
unsafe fn norm<E: Element>(call: &HostCall<'_>, groups: Range<u32>) {
    let [_, _, width, _] = array(call.constants);
    let (width, epsilon) = (width as usize, f64::from(call.float(3)));
    // SAFETY: no thread writes these bindings; all bit patterns are valid values.
    let (x, [weight, bias]) = unsafe { (call.read::<E>(0), [1, 2].map(|binding| call.read::<f32>(binding))) };
    for row in groups.start as usize..groups.end as usize {
        let x = x[row * width..][..width].iter().map(|x| f64::from(x.value()));
        let mean = x.clone().sum::<f64>() / width as f64;
        let squares = x.clone().map(|x| (x - mean).powi(2)).sum::<f64>();
        let scale = 1.0 / (squares / width as f64 + epsilon).sqrt();
        // SAFETY: each group writes its own row.
        let out = unsafe { call.write::<f32>(3, row * width..(row + 1) * width) };
        for (out, (x, (w, b))) in out.iter_mut().zip(x.zip(weight.iter().zip(bias))) {
            *out = ((x - mean) * scale) as f32 * w + b;
        }
    }
}

/// Sums over the words of each part of a buffer.
pub(crate) struct Checksum;

impl HostKernel for Checksum {
    const KERNEL: Kernel = Kernel::Checksum;

    fn grid(constants: &[u32]) -> [u32; 3] {
        checksum::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [words, part] = array(call.constants);
        // SAFETY: no thread writes this binding; all bit patterns are valid values.
        let x = unsafe { call.read::<u32>(0) };
        for group in groups {
            let first = group * part;
            let of_part = &x[first as usize..(first + part.min(words - first)) as usize];
            let at = 2 * group as usize;
            // SAFETY: each group writes its own pair.
            unsafe { call.write::<u32>(1, at..at + 2) }.copy_from_slice(&checksum::sums(first, of_part));
        }
    }
}
