//! Row kernels: embedding, gather, norms, quantization, SiLU, addition.

use super::formats::{Format, Of};
use super::isa::Isa;
use super::launch::{Lists, count};
use super::packed::Packed;
use super::row::{Row, RowWise};
use crate::gather;
use crate::head_norm::Form;
use crate::kernel::{Activations, Kernel};
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, group_bytes};
use crate::params::{HEADER_WORDS, LOGIT_ROWS, ROWS};
use crate::quantize::BLOCK;
use crate::silu_mul::Gate;
use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::marker::PhantomData;

/// Looks up rows of an embedding table of type `W`.
pub(crate) struct Embed<W>(Of<W>);

// SAFETY: `row` reads bindings 0 and 1 as words and bytes, and writes its row of binding 2 once.
unsafe impl<W: Format> RowWise for Embed<W> {
    const KERNEL: Kernel = Kernel::Embed(W::TYPE);

    #[inline(always)]
    fn rows(constants: &[u32], params: &[u32]) -> usize {
        count(params, ROWS, constants[0])
    }
    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [rows, vocabulary, width, first] = row.constants();
        let width = width as usize;
        let out = row.write(2, width);
        let lists = Lists::new(row.all::<u32>(0), [rows, 0, 0, 0]);
        let token = lists.token(row.index).wrapping_sub(first as usize);
        if token >= vocabulary as usize {
            if first == 0 {
                out.fill(0.0);
            }
            return;
        }
        let bytes = group_bytes(W::TYPE, width);
        let group = W::open(&row.all::<u8>(1)[token / GROUP_ROWS * bytes..][..bytes], width);
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

/// Selects the rows that need logits.
pub(crate) struct Gather;

// SAFETY: `row` reads bindings 0 and 1 as words and floats, and writes its row of binding 2 once.
unsafe impl RowWise for Gather {
    const KERNEL: Kernel = Kernel::Gather;

    fn grid(constants: &[u32]) -> [u32; 3] {
        gather::grid(constants)
    }
    #[inline(always)]
    fn rows(constants: &[u32], params: &[u32]) -> usize {
        count(params, LOGIT_ROWS, constants[1])
    }
    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [rows, logit_rows, width] = row.constants();
        let out = row.write(2, width as usize);
        let from = Lists::new(row.all::<u32>(0), [rows, 0, 0, logit_rows]).logit_row(row.index);
        if from < rows as usize {
            out.copy_from_slice(&row.all::<f32>(1)[from * out.len()..][..out.len()]);
        } else {
            out.fill(0.0);
        }
    }
}

/// Addition in place: x += y.
pub(crate) struct Add;

// SAFETY: `row` reads binding 2 as floats, and writes its row of binding 1 once.
unsafe impl RowWise for Add {
    const KERNEL: Kernel = Kernel::Add;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [_, _, width] = row.constants();
        let (x, y) = (row.write(1, width as usize), row.read(2, width as usize));
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
}

/// Returns block `block` of a row, as two vectors of 16 values.
#[inline(always)]
pub(super) fn block<S: Isa>(s: S, row: &[f32], block: usize) -> (S::F, S::F) {
    let lanes = row[block * BLOCK..][..BLOCK].as_chunks::<16>().0;
    (s.load(&lanes[0]), s.load(&lanes[1]))
}

/// Converts f32 to activations of type `O`.
pub(crate) struct Quantize<O>(PhantomData<O>);

// SAFETY: `row` reads binding 1 as floats, and writes its row of binding 2 once.
unsafe impl<O: Packed> RowWise for Quantize<O> {
    const KERNEL: Kernel = Kernel::Quantize(O::TYPE);

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width] = row.constants();
        let x = row.read(1, width as usize);
        O::write(s, row, 2, x.len(), |b| block(s, x, b));
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

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for RmsNorm {
    const KERNEL: Kernel = Kernel::RmsNorm(Activations::F32);

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, _] = row.constants();
        let (x, weight) = (row.read(1, width as usize), row.all::<f32>(2));
        let scale = norm_scale(s, x, row.float(3));
        let out = row.write(3, x.len());
        out.iter_mut().zip(x).zip(weight).for_each(|((out, x), w)| *out = x * scale * w);
    }
}

/// RMS norm with output of type `O`.
pub(crate) struct PackedRmsNorm<O>(PhantomData<O>);

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl<O: Packed> RowWise for PackedRmsNorm<O> {
    const KERNEL: Kernel = Kernel::RmsNorm(O::TYPE);

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, _] = row.constants();
        let (x, weight) = (row.read(1, width as usize), row.all::<f32>(2));
        let scale = s.splat(norm_scale(s, x, row.float(3)));
        O::write(s, row, 3, x.len(), |b| {
            let ((x0, x1), (w0, w1)) = (block(s, x, b), block(s, weight, b));
            (s.mul(s.mul(x0, scale), w0), s.mul(s.mul(x1, scale), w1))
        });
    }
}

/// Norm of the query and key heads, in place.
pub(crate) struct HeadNorm;

// SAFETY: `row` reads binding 2 as floats, binding 0 as words, and writes its row of binding 1 once.
unsafe impl RowWise for HeadNorm {
    const KERNEL: Kernel = Kernel::HeadNorm;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [rows, _, heads, kv_heads, head_dim, _, form, period] = row.constants();
        let [heads, kv_heads, head_dim] = [heads, kv_heads, head_dim].map(|n| n as usize);
        let weights = row.all::<f32>(2);
        let qkv = row.write(1, (heads + 2 * kv_heads) * head_dim);
        let (queries, rest) = qkv.split_at_mut(heads * head_dim);
        if form == Form::Growth as u32 {
            let position = row.all::<u32>(0)[HEADER_WORDS + rows as usize + row.index];
            let periods = (position.wrapping_add(1) / period.max(1)) as f32;
            let factor = 1.0 + row.float(5) * periods.ln_1p();
            return queries.iter_mut().for_each(|value| *value *= factor);
        }
        let (keys, values) = rest.split_at_mut(kv_heads * head_dim);
        let whole = [queries.len(), keys.len()];
        let [q, kv] = if form == Form::Whole as u32 { whole } else { [head_dim; 2] };
        let of_keys = if Form::shares_weights(form) { head_dim } else { queries.len() };
        for (part, dims, weights) in [(queries, q, weights), (keys, kv, &weights[of_keys..])] {
            for (i, head) in part.chunks_exact_mut(dims.max(1)).enumerate() {
                let mut weights = weights;
                if form == Form::Centred as u32 {
                    weights = &weights[i * dims..];
                    let mean = head.iter().map(|x| f64::from(*x)).sum::<f64>() / dims as f64;
                    head.iter_mut().for_each(|x| *x = (f64::from(*x) - mean) as f32);
                }
                let scale = norm_scale(s, head, row.float(5));
                head.iter_mut().zip(weights).for_each(|(x, w)| *x = *x * scale * w);
            }
        }
        if form == Form::Values as u32 {
            for head in values.chunks_exact_mut(head_dim.max(1)) {
                let scale = norm_scale(s, head, row.float(5));
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// xIELU with the numbers of a layer.
pub(crate) struct Xielu;

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for Xielu {
    const KERNEL: Kernel = Kernel::Xielu;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [_, _, width] = row.constants();
        let [p, n, beta, epsilon] = std::array::from_fn(|at| row.all::<f32>(2)[at]);
        let softplus = |a: f32| a.max(0.0) + (-a.abs()).exp().ln_1p();
        let (positive, negative) = (softplus(p), beta + softplus(n));
        let x = row.read(1, width as usize);
        for (out, x) in row.write(3, width as usize).iter_mut().zip(x) {
            let least = if *x < epsilon { *x } else { epsilon };
            // The difference cancels nothing at small values.
            let rest = if least < -0.125 { least.exp_m1() - least } else { exp_rest(least) };
            let curve = if *x > 0.0 { positive * x * x } else { negative * (rest + (least - x)) };
            *out = beta * x + curve;
        }
    }
}

/// Returns e^x − 1 − x for small x.
#[inline(always)]
fn exp_rest(x: f32) -> f32 {
    x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x / 120.0)))
}

/// Queries, the key and the value of latent attention.
pub(crate) struct LatentRows;

// SAFETY: `row` reads bindings 1 to 3 as floats, binding 0 as words, and writes its row of binding 4 once.
unsafe impl RowWise for LatentRows {
    const KERNEL: Kernel = Kernel::LatentRows;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [rows, _, heads, plain, rope, rank, .., period] = row.constants::<9>();
        let [heads, plain, rope, rank] = [heads, plain, rope, rank].map(|n| n as usize);
        let (epsilon, beta, joint) = (row.float(6), row.float(7), rope + rank);
        let position = row.all::<u32>(0)[HEADER_WORDS + rows as usize + row.index];
        let factor = 1.0 + beta * ((position / period + 1) as f32).ln();
        let (q, kv) = (row.read(1, heads * (plain + rope)), row.read(2, joint));
        let (queries, others) = row.write(4, (heads + 2) * joint).split_at_mut(heads * joint);
        for (from, to) in q.chunks_exact((plain + rope).max(1)).zip(queries.chunks_exact_mut(joint.max(1))) {
            to[..rope].copy_from_slice(&from[plain..]);
            if beta != 0.0 {
                to.iter_mut().for_each(|value| *value *= factor);
            }
        }
        let (latent, rotating) = kv.split_at(rank);
        let (key, value) = others.split_at_mut(joint);
        key[..rope].copy_from_slice(rotating);
        let scale = norm_scale(s, latent, epsilon);
        let values = latent.iter().zip(row.all::<f32>(3));
        key[rope..].iter_mut().zip(values).for_each(|(out, (x, w))| *out = x * scale * w);
        value.copy_from_slice(key);
    }
}

/// Computes f(gate) · up in 16 lanes, with the function `f` of [`Gate`].
#[inline(always)]
fn gated<S: Isa>(s: S, f: u32, gate: S::F, up: S::F) -> S::F {
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

/// Returns the gate values and the up values of a row.
#[inline(always)]
fn gate_and_up(row: Row<'_>, width: usize) -> (&[f32], &[f32]) {
    row.read(1, 2 * width).split_at(width)
}

/// f(gate) · up with f32 output.
pub(crate) struct SiluMul;

// SAFETY: `row` reads binding 1 as floats, and writes its row of binding 2 once.
unsafe impl RowWise for SiluMul {
    const KERNEL: Kernel = Kernel::SiluMul(Activations::F32);

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, f] = row.constants();
        let (gate, up) = gate_and_up(row, width as usize);
        let (gate, gate_rest) = gate.as_chunks::<16>();
        let (up, up_rest) = up.as_chunks::<16>();
        let (out, out_rest) = row.write(2, width as usize).as_chunks_mut::<16>();
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

/// f(gate) · up with output of type `O`.
pub(crate) struct PackedSiluMul<O>(PhantomData<O>);

// SAFETY: `row` reads binding 1 as floats, and writes its row of binding 2 once.
unsafe impl<O: Packed> RowWise for PackedSiluMul<O> {
    const KERNEL: Kernel = Kernel::SiluMul(O::TYPE);

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, f] = row.constants();
        let (gate, up) = gate_and_up(row, width as usize);
        O::write(s, row, 2, gate.len(), |b| {
            let ((g0, g1), (u0, u1)) = (block(s, gate, b), block(s, up, b));
            (gated(s, f, g0, u0), gated(s, f, g1, u1))
        });
    }
}
