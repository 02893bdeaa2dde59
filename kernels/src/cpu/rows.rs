//! Row kernels: embedding, gather, norms, quantization, SiLU, addition.

use super::HostKernel;
use super::formats::{Format, Of};
use super::isa::Isa;
use super::launch::{Lists, count, row_mut};
use crate::head_norm::Form;
use crate::kernel::{Activations, Kernel};
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, group_bytes};
use crate::quantize::{BLOCK, row_bytes, scales_offset, sums_offset};
use crate::silu_mul::Gate;
use crate::{add, gather};
use ragtag_hal::HostCall;
use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::ops::Range;

/// Looks up rows of an embedding table of type `W`.
pub(crate) struct Embed<W>(Of<W>);

impl<W: Format> HostKernel for Embed<W> {
    const KERNEL: Kernel = Kernel::Embed(W::TYPE);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, vocabulary, width, first] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes parameters and weights; all bit patterns are valid for these types.
        let (params, table) = unsafe { (call.read::<u32>(0), call.read::<u8>(1)) };
        let lists = Lists::new(params, [rows, 0, 0, 0]);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < lists.rows()) {
            // SAFETY: each group writes its own row.
            let out = unsafe { row_mut(call, 2, row, width) };
            let token = lists.token(row).wrapping_sub(first as usize);
            if token >= vocabulary as usize {
                if first == 0 {
                    out.fill(0.0);
                }
                continue;
            }
            let bytes = group_bytes(W::TYPE, width);
            let group = W::open(&table[token / GROUP_ROWS * bytes..][..bytes], width);
            for (b, out) in out.as_chunks_mut::<COLUMN_BLOCK>().0.iter_mut().enumerate() {
                let block = W::block(s, group, b);
                for quad in 0..COLUMN_BLOCK / 4 {
                    for (i, column) in W::quad(s, &block, quad).into_iter().enumerate() {
                        let mut lanes = [0.0; 16];
                        s.store(column, &mut lanes);
                        out[quad * 4 + i] = lanes[token % GROUP_ROWS];
                    }
                }
            }
        }
    }
}

/// Selects the rows that need logits.
pub(crate) struct Gather;

impl HostKernel for Gather {
    const KERNEL: Kernel = Kernel::Gather;

    fn grid(constants: &[u32]) -> [u32; 3] {
        gather::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, logit_rows, width] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let lists = Lists::new(params, [rows, 0, 0, logit_rows]);
        for i in (groups.start as usize..groups.end as usize).take_while(|i| *i < lists.logit_rows()) {
            // SAFETY: each group writes its own row.
            let out = unsafe { row_mut(call, 2, i, width) };
            let row = lists.logit_row(i);
            if row < rows as usize { out.copy_from_slice(&x[row * width..][..width]) } else { out.fill(0.0) }
        }
    }
}

/// Addition in place: x += y.
pub(crate) struct Add;

impl HostKernel for Add {
    const KERNEL: Kernel = Kernel::Add;

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, y) = unsafe { (call.read::<u32>(0), call.read::<f32>(2)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            // SAFETY: each group writes its own row.
            let x = unsafe { row_mut(call, 1, row, width) };
            x.iter_mut().zip(&y[row * width..]).for_each(|(x, y)| *x += y);
        }
    }
}

/// The sections of a row of int8 activations.
pub(super) struct Int8Row<'a> {
    quants: &'a mut [[[i8; 16]; 2]],
    scales: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
}

impl<'a> Int8Row<'a> {
    /// Returns row `row` of the binding with index `binding`, for writing.
    ///
    /// # Safety
    /// The requirements of [`HostCall::write`] apply.
    #[inline(always)]
    pub unsafe fn new(call: &'a HostCall<'_>, binding: usize, row: usize, width: usize) -> Self {
        let start = row * row_bytes(width);
        let (scales, sums) = ((start + scales_offset(width)) / 4, (start + sums_offset(width)) / 4);
        let blocks = width / BLOCK;
        // SAFETY: three ranges of the row that do not overlap; the caller owns the row.
        let (quants, scales, sums) = unsafe {
            (
                call.write::<i8>(binding, start..start + width),
                call.write::<f32>(binding, scales..scales + blocks),
                call.write::<i32>(binding, sums..sums + blocks * 2),
            )
        };
        Self { quants: quants.as_chunks_mut().0.as_chunks_mut().0, scales, sums: sums.as_chunks_mut().0 }
    }

    /// Quantizes block `block`, which has 32 values. `first` holds the first 16 values, and `last` holds the
    /// last 16.
    #[inline(always)]
    pub fn put<S: Isa>(&mut self, s: S, block: usize, first: S::F, last: S::F) {
        let largest = s.largest_abs(first, last);
        let inverse = s.splat(if largest == 0.0 { 0.0 } else { 127.0 / largest });
        let quants = &mut self.quants[block];
        let sums = &mut self.sums[block];
        (quants[0], sums[0]) = s.to_i8(s.mul(first, inverse));
        (quants[1], sums[1]) = s.to_i8(s.mul(last, inverse));
        self.scales[block] = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
    }
}

/// Returns block `block` of a row, as two vectors of 16 values.
#[inline(always)]
pub(super) fn block<S: Isa>(s: S, row: &[f32], block: usize) -> (S::F, S::F) {
    let lanes = row[block * BLOCK..][..BLOCK].as_chunks::<16>().0;
    (s.load(&lanes[0]), s.load(&lanes[1]))
}

/// Converts f32 to int8 activations.
pub(crate) struct Quantize;

impl HostKernel for Quantize {
    const KERNEL: Kernel = Kernel::Quantize(Activations::Int8);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            // SAFETY: each group writes its own row.
            let mut out = unsafe { Int8Row::new(call, 2, row, width) };
            for b in 0..width / BLOCK {
                let (first, last) = block(s, x, b);
                out.put(s, b, first, last);
            }
        }
    }
}

/// Returns 1 / √(mean square + ε) for a row.
#[inline(always)]
pub(super) fn norm_scale<S: Isa>(s: S, row: &[f32], epsilon: f32) -> f32 {
    let (quads, rest) = row.as_chunks::<64>();
    let mut sums = [s.zero(); 4];
    for quad in quads {
        let lanes = quad.as_chunks::<16>().0;
        for i in 0..4 {
            let x = s.load(&lanes[i]);
            sums[i] = s.fma(x, x, sums[i]);
        }
    }
    let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    let rest: f32 = rest.iter().map(|x| x * x).sum();
    1.0 / ((sum + rest) / row.len() as f32 + epsilon).sqrt()
}

/// RMS norm with f32 output.
pub(crate) struct RmsNorm;

impl HostKernel for RmsNorm {
    const KERNEL: Kernel = Kernel::RmsNorm(Activations::F32);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, _] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x, weight) = unsafe { (call.read::<u32>(0), call.read::<f32>(1), call.read::<f32>(2)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            let scale = norm_scale(s, x, call.float(3));
            // SAFETY: each group writes its own row.
            let out = unsafe { row_mut(call, 3, row, width) };
            out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = x * scale * w);
        }
    }
}

/// Norm of the query and key heads, in place.
pub(crate) struct HeadNorm;

impl HostKernel for HeadNorm {
    const KERNEL: Kernel = Kernel::HeadNorm;

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, heads, kv_heads, head_dim, _, form] = call.constants else { return };
        let [heads, kv_heads, head_dim] = [heads, kv_heads, head_dim].map(|n| n as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, weights) = unsafe { (call.read::<u32>(0), call.read::<f32>(2)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            // SAFETY: each group writes its own row.
            let qkv = unsafe { row_mut(call, 1, row, (heads + 2 * kv_heads) * head_dim) };
            let (queries, rest) = qkv.split_at_mut(heads * head_dim);
            let keys = &mut rest[..kv_heads * head_dim];
            let whole = [queries.len(), keys.len()];
            let [q, kv] = if form == Form::Whole as u32 { whole } else { [head_dim; 2] };
            let of_keys = if form == Form::Heads as u32 { head_dim } else { queries.len() };
            for (part, dims, weights) in [(queries, q, weights), (keys, kv, &weights[of_keys..])] {
                for (i, head) in part.chunks_exact_mut(dims.max(1)).enumerate() {
                    let mut weights = weights;
                    if form == Form::Centred as u32 {
                        weights = &weights[i * dims..];
                        let mean = head.iter().map(|x| f64::from(*x)).sum::<f64>() / dims as f64;
                        head.iter_mut().for_each(|x| *x = (f64::from(*x) - mean) as f32);
                    }
                    let scale = norm_scale(s, head, call.float(5));
                    head.iter_mut().zip(weights).for_each(|(x, w)| *x = *x * scale * w);
                }
            }
        }
    }
}

/// RMS norm with int8 output.
pub(crate) struct RmsNormInt8;

impl HostKernel for RmsNormInt8 {
    const KERNEL: Kernel = Kernel::RmsNorm(Activations::Int8);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, _] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x, weight) = unsafe { (call.read::<u32>(0), call.read::<f32>(1), call.read::<f32>(2)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            let scale = s.splat(norm_scale(s, x, call.float(3)));
            // SAFETY: each group writes its own row.
            let mut out = unsafe { Int8Row::new(call, 3, row, width) };
            for b in 0..width / BLOCK {
                let ((x0, x1), (w0, w1)) = (block(s, x, b), block(s, weight, b));
                out.put(s, b, s.mul(s.mul(x0, scale), w0), s.mul(s.mul(x1, scale), w1));
            }
        }
    }
}

/// Computes f(gate) · up in 16 lanes, with the function `f` of [`Gate`].
#[inline(always)]
pub(super) fn gated<S: Isa>(s: S, f: u32, gate: S::F, up: S::F) -> S::F {
    if f == Gate::SquaredRelu as u32 {
        let positive = s.max(gate, s.zero());
        return s.mul(s.mul(positive, positive), up);
    }
    let exponent = if f == Gate::Silu as u32 {
        gate
    } else {
        // 1 + tanh(y) equals 2 · sigmoid(2y), and y has the factor √(2/π).
        let square = s.mul(s.mul(gate, gate), s.splat(0.044715));
        s.mul(s.fma(square, gate, gate), s.splat(FRAC_2_SQRT_PI * SQRT_2))
    };
    let e = s.exp(s.sub(s.zero(), exponent));
    s.mul(s.div(gate, s.add(s.splat(1.0), e)), up)
}

/// Returns the gate values and the up values of row `row`.
#[inline(always)]
pub(super) fn gate_and_up(rows: &[f32], row: usize, width: usize) -> (&[f32], &[f32]) {
    rows[row * 2 * width..][..2 * width].split_at(width)
}

/// f(gate) · up with f32 output.
pub(crate) struct SiluMul;

impl HostKernel for SiluMul {
    const KERNEL: Kernel = Kernel::SiluMul(Activations::F32);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, f] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, gate_up) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let (gate, up) = gate_and_up(gate_up, row, width);
            let (gate, gate_rest) = gate.as_chunks::<16>();
            let (up, up_rest) = up.as_chunks::<16>();
            // SAFETY: each group writes its own row.
            let (out, out_rest) = unsafe { row_mut(call, 2, row, width) }.as_chunks_mut::<16>();
            for (out, (gate, up)) in out.iter_mut().zip(gate.iter().zip(up)) {
                s.store(gated(s, f, s.load(gate), s.load(up)), out);
            }
            let mut rest = [[0.0; 16]; 3];
            rest[0][..gate_rest.len()].copy_from_slice(gate_rest);
            rest[1][..up_rest.len()].copy_from_slice(up_rest);
            s.store(gated(s, f, s.load(&rest[0]), s.load(&rest[1])), &mut rest[2]);
            out_rest.copy_from_slice(&rest[2][..out_rest.len()]);
        }
    }
}

/// f(gate) · up with int8 output.
pub(crate) struct SiluMulInt8;

impl HostKernel for SiluMulInt8 {
    const KERNEL: Kernel = Kernel::SiluMul(Activations::Int8);

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, f] = call.constants else { return };
        let width = width as usize;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, gate_up) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let (gate, up) = gate_and_up(gate_up, row, width);
            // SAFETY: each group writes its own row.
            let mut out = unsafe { Int8Row::new(call, 2, row, width) };
            for b in 0..width / BLOCK {
                let ((g0, g1), (u0, u1)) = (block(s, gate, b), block(s, up, b));
                out.put(s, b, gated(s, f, g0, u0), gated(s, f, g1, u1));
            }
        }
    }
}
