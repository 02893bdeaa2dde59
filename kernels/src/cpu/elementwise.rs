//! General operators that compute each output value from a few input values. Consecutive groups write
//! adjacent ranges, so all groups of a call together write one contiguous range.

use super::HostKernel;
use super::isa::Isa;
use crate::abi::array;
use crate::binary::{self, Operation};
use crate::elements::{ITEMS, RANK, convert, element, in_a_word, place};
use crate::kernel::Kernel;
use crate::unary::{self, Function};
use crate::{copy, gather_rows, rope};
use ragtag_hal::HostCall;
use std::ops::Range;

/// Returns the range of items that `groups` write, limited to `count`.
#[inline(always)]
fn items(groups: Range<u32>, count: usize) -> Range<usize> {
    let item = |group: u32| (group as usize * ITEMS as usize).min(count);
    item(groups.start)..item(groups.end)
}

/// Writes words of the binding with index `binding`. A word holds one or two elements.
///
/// # Safety
/// The requirements of [`HostCall::write`] apply.
#[inline(always)]
unsafe fn write_elements(
    call: &HostCall<'_>,
    binding: usize,
    groups: Range<u32>,
    (to, count): (u32, usize),
    bits: impl Fn(usize) -> u32,
) {
    let in_word = in_a_word(to).unwrap_or(1) as usize;
    let words = items(groups, count.div_ceil(in_word));
    // SAFETY: each group writes its own words.
    let out = unsafe { call.write::<u32>(binding, words.clone()) };
    for (out, word) in out.iter_mut().zip(words) {
        let of_word = (0..in_word).filter(|i| word * in_word + i < count);
        *out = of_word.fold(0, |both, i| both | bits(word * in_word + i) << (16 * i));
    }
}

/// Returns element `i` of `words` as an f32. `kind` is the number of the element type.
#[inline(always)]
fn value(words: &[u32], kind: u32, i: usize) -> f32 {
    f32::from_bits(convert(kind, 0, element(words, kind, i)))
}

/// Converts `value` to the bits of an element whose type has number `kind`.
#[inline(always)]
fn bits_of(kind: u32, value: f32) -> u32 {
    convert(0, kind, value.to_bits())
}

/// Copies elements at strided positions and converts their type.
pub(crate) struct Copy;

impl HostKernel for Copy {
    const KERNEL: Kernel = Kernel::Copy;

    fn grid(constants: &[u32]) -> [u32; 3] {
        copy::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [from, to, first, shape @ ..] = array::<{ 3 + 2 * RANK }>(call.constants);
        let (sizes, strides) = shape.split_at(RANK);
        let count = sizes.iter().map(|size| *size as usize).product();
        // SAFETY: no thread writes this binding; all bit patterns are valid words.
        let x = unsafe { call.read::<u32>(0) };
        let is_contiguous = sizes[..RANK - 1].iter().all(|size| *size == 1) && strides[RANK - 1] == 1;
        let bits = |i| {
            let at = if is_contiguous { i } else { place(i, sizes, strides) };
            convert(from, to, element(x, from, first as usize + at))
        };
        // SAFETY: guaranteed by the caller.
        unsafe { write_elements(call, 1, groups, (to, count), bits) };
    }
}

/// Looks up rows of a table by index.
pub(crate) struct GatherRows;

impl HostKernel for GatherRows {
    const KERNEL: Kernel = Kernel::GatherRows;

    fn grid(constants: &[u32]) -> [u32; 3] {
        gather_rows::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [from, to, rows, table_rows, width] = array(call.constants);
        // SAFETY: no thread writes these bindings; all bit patterns are valid words.
        let (indices, table) = unsafe { (call.read::<u32>(0), call.read::<u32>(1)) };
        let width = width as usize;
        let bits = |i: usize| match indices[i / width] {
            index if index < table_rows => {
                convert(from, to, element(table, from, index as usize * width + i % width))
            }
            _ => 0,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { write_elements(call, 2, groups, (to, rows as usize * width), bits) };
    }
}

/// Computes the cumulative normal distribution function Φ. The approximation of e^(z²) · erfc(z) is t times a
/// polynomial in t = 1 / (1 + 0.45 z). Its relative error is at most 2 · 10⁻⁶ over the whole tail.
#[inline(always)]
fn normal(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.45 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let coefficients = [
        0.068_094_05,
        -0.245_722_94,
        0.218_837_75,
        0.030_539_254,
        0.194_082_22,
        0.226_360_1,
        0.253_919_6,
        0.253_890_25,
    ];
    let series = coefficients.into_iter().fold(0.0, |sum, c| sum * t + c) * t;
    let tail = 0.5 * series * (-0.5 * x * x).exp();
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Returns the f32 implementation of `function`.
fn function_of(function: Function) -> fn(f32) -> f32 {
    fn positive(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
    /// Computes x · factor(x). At −∞, returns the limit, which is zero.
    #[inline(always)]
    fn gated(x: f32, factor: impl Fn(f32) -> f32) -> f32 {
        if x < -200.0 { -0.0 } else { x * factor(x) }
    }
    match function {
        Function::Relu => positive,
        Function::SquaredRelu => |x| positive(x) * positive(x),
        Function::Sigmoid => |x| 1.0 / (1.0 + (-x).exp()),
        Function::Tanh => f32::tanh,
        Function::Exp => f32::exp,
        Function::Log => f32::ln,
        Function::Sqrt => f32::sqrt,
        Function::Abs => f32::abs,
        Function::Neg => |x| -x,
        Function::Silu => |x| gated(x, |x| 1.0 / (1.0 + (-x).exp())),
        Function::Gelu => |x| gated(x, normal),
        Function::GeluTanh => {
            |x| gated(x, |x| 1.0 / (1.0 + (-1.595_769 * (x + 0.044_715 * x * x * x)).exp()))
        }
    }
}

/// Applies a function to each value.
pub(crate) struct Unary;

impl HostKernel for Unary {
    const KERNEL: Kernel = Kernel::Unary;

    fn grid(constants: &[u32]) -> [u32; 3] {
        unary::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [function, kind, count] = array(call.constants);
        let function = Function::ALL[function as usize];
        let function = function_of(function);
        // SAFETY: no thread writes this binding; all bit patterns are valid words.
        let x = unsafe { call.read::<u32>(0) };
        let bits = |i| bits_of(kind, function(value(x, kind, i)));
        // SAFETY: guaranteed by the caller.
        unsafe { write_elements(call, 1, groups, (kind, count as usize), bits) };
    }
}

/// Returns the f32 implementation of `operation`.
fn operation_of(operation: Operation) -> fn(f32, f32) -> f32 {
    match operation {
        Operation::Add => |a, b| a + b,
        Operation::Sub => |a, b| a - b,
        Operation::Mul => |a, b| a * b,
        Operation::Div => |a, b| a / b,
        Operation::Max => |a, b| if a > b || a.is_nan() { a } else { b },
        Operation::Min => |a, b| if a < b || a.is_nan() { a } else { b },
    }
}

/// Applies an operation to pairs of values.
pub(crate) struct Binary;

impl HostKernel for Binary {
    const KERNEL: Kernel = Kernel::Binary;

    fn grid(constants: &[u32]) -> [u32; 3] {
        binary::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [operation, kind, shape @ ..] = array::<{ 2 + 3 * RANK }>(call.constants);
        let operation = Operation::ALL[operation as usize];
        let (sizes, strides) = shape.split_at(RANK);
        let (strides_a, strides_b) = strides.split_at(RANK);
        let count = sizes.iter().map(|size| *size as usize).product();
        let operation = operation_of(operation);
        // SAFETY: no thread writes these bindings; all bit patterns are valid words.
        let (a, b) = unsafe { (call.read::<u32>(0), call.read::<u32>(1)) };
        let value = |of, strides, i| value(of, kind, place(i, sizes, strides));
        let bits = |i| bits_of(kind, operation(value(a, strides_a, i), value(b, strides_b, i)));
        // SAFETY: guaranteed by the caller.
        unsafe { write_elements(call, 2, groups, (kind, count), bits) };
    }
}

/// Rotary position embedding.
pub(crate) struct Rope;

impl HostKernel for Rope {
    const KERNEL: Kernel = Kernel::Rope;

    fn grid(constants: &[u32]) -> [u32; 3] {
        rope::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [kind, rows, heads, head_dim, rope_dims, pairing] = array(call.constants);
        let [rows, heads, head_dim, rope_dims] = [rows, heads, head_dim, rope_dims].map(|n| n as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (positions, turns, x) =
            unsafe { (call.read::<u32>(0), call.read::<[u32; 2]>(1), call.read::<u32>(2)) };
        let bits = |i: usize| {
            let (head, at) = (i / head_dim, i % head_dim);
            if at >= rope_dims {
                return element(x, kind, i);
            }
            let (pair, apart) = match pairing {
                rope::INTERLEAVED => (at / 2, [2 * (at / 2), 2 * (at / 2) + 1]),
                _ => (at % (rope_dims / 2), [at % (rope_dims / 2), at % (rope_dims / 2) + rope_dims / 2]),
            };
            let (sin, cos) = rope::sin_cos(rope::angle(positions[head / heads], turns[pair]));
            let [first, second] = apart.map(|at| value(x, kind, head * head_dim + at));
            let turned = if at == apart[0] { first * cos - second * sin } else { first * sin + second * cos };
            bits_of(kind, turned)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { write_elements(call, 3, groups, (kind, rows * heads * head_dim), bits) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_end_at_the_count() {
        assert_eq!(items(0..2, 300), 0..300);
        assert_eq!(items(1..2, 1000), 256..512);
        assert_eq!(crate::elements::grid(257), [2, 1, 1]);
    }
}
