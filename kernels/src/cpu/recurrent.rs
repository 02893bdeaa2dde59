//! Operators of recurrent layers.

use super::HostKernel;
use super::isa::Isa;
use super::launch::Lists;
use super::row::{Row, RowWise};
use super::rows::norm_scale;
use crate::abi::split_capacities;
use crate::kernel::Kernel;
use crate::recurrent::NONE;
use crate::recurrent::conv::{MAX_TAPS, Mode};
use crate::recurrent::gated_norm::{Function, Order};
use crate::recurrent::scan::{DELTA, LOGARITHM, TILED, VECTOR};
use ragtag_hal::HostCall;
use std::ops::Range;

/// Columns that a group of the convolution computes.
const COLUMNS: usize = 64;

/// A run: its first row, the row after its last one, and its slots. A slot is `None` if it does not exist or holds
/// nothing.
struct Run {
    rows: Range<usize>,
    from: Option<usize>,
    to: Option<usize>,
}

/// Returns the runs of a micro-batch, in order.
fn runs(lists: Lists<'_>, slots: u32) -> impl Iterator<Item = Run> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = next;
        let is_same = |row: &usize| lists.sequence(*row) == lists.sequence(first);
        next = first + (first..lists.rows()).take_while(is_same).count();
        let word = |row| lists.table(row).and_then(|table| table.first()).copied().unwrap_or(u32::MAX);
        (next > first).then(|| {
            let word = word(first);
            let [from, to] = [word & 0xffff, word >> 16].map(|slot| (slot < slots).then_some(slot as usize));
            Run { rows: first..next, from: from.filter(|_| lists.position(first) > 0), to }
        })
    })
}

/// Causal convolution.
pub(crate) struct CausalConv;

impl HostKernel for CausalConv {
    const KERNEL: Kernel = Kernel::CausalConv;

    fn grid(constants: &[u32]) -> [u32; 3] {
        if constants[0] == 0 { [0; 3] } else { [constants[4].div_ceil(COLUMNS as u32), 1, 1] }
    }

    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let (capacities, [columns, pitch, from, before, after, taps, silu, biased, slots, mode]) =
            split_capacities(call.constants);
        let [columns, pitch, from, taps] = [columns, pitch, from, taps].map(|n| n as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        // SAFETY: as above.
        let weights = unsafe { call.read::<f32>(2) };
        let lists = Lists::new(params, capacities);
        for group in groups.start as usize..groups.end as usize {
            let first = group * COLUMNS;
            let width = COLUMNS.min(columns - first);
            let row_of = |row: usize, column: usize| &x[row * pitch + column + first..][..width];
            for run in runs(lists, slots) {
                let state = |slot: usize, t: usize| {
                    let at = (slot * (taps - 1) + t) * columns + first;
                    // SAFETY: each group accesses its own columns of the states.
                    unsafe { call.write::<f32>(3, at..at + width) }
                };
                // The inputs of the latest rows, the oldest first.
                let mut inputs = [[0.0; COLUMNS]; MAX_TAPS as usize];
                for t in 0..taps - 1 {
                    if let Some(slot) = run.from {
                        inputs[t + 1][..width].copy_from_slice(state(slot, t));
                    }
                }
                for row in run.rows {
                    inputs.copy_within(1..taps, 0);
                    let input = &mut inputs[taps - 1][..width];
                    input.copy_from_slice(row_of(row, from));
                    if before != NONE {
                        let factors = row_of(row, before as usize);
                        input.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
                    }
                    if mode == Mode::States as u32 {
                        continue;
                    }
                    let at = row * columns + first;
                    // SAFETY: each group writes its own columns of every row.
                    let out = unsafe { call.write::<f32>(4, at..at + width) };
                    for (i, out) in out.iter_mut().enumerate() {
                        let column = first + i;
                        let mut sum = if biased > 0 { weights[columns * taps + column] } else { 0.0 };
                        for (t, weight) in weights[column * taps..][..taps].iter().enumerate() {
                            sum += weight * inputs[t][i];
                        }
                        *out = sum;
                    }
                    if silu > 0 {
                        silu_of(s, out);
                    }
                    if after != NONE {
                        let factors = row_of(row, after as usize);
                        out.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
                    }
                }
                if let Some(slot) = run.to.filter(|_| mode != Mode::Rows as u32) {
                    (0..taps - 1).for_each(|t| state(slot, t).copy_from_slice(&inputs[t + 1][..width]));
                }
            }
        }
    }
}

/// Replaces values by their SiLU.
#[inline(always)]
fn silu_of<S: Isa>(s: S, values: &mut [f32]) {
    let (blocks, rest) = values.as_chunks_mut::<16>();
    for block in blocks {
        let x = s.load(block);
        let e = s.exp(s.sub(s.zero(), x));
        s.store(s.div(x, s.add(s.splat(1.0), e)), block);
    }
    rest.iter_mut().for_each(|value| *value /= 1.0 + (-*value).exp());
}

/// Returns ln(1 + e^x).
#[inline(always)]
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// State scan.
pub(crate) struct StateScan;

impl HostKernel for StateScan {
    const KERNEL: Kernel = Kernel::StateScan;

    fn grid(constants: &[u32]) -> [u32; 3] {
        if constants[0] == 0 { [0; 3] } else { [constants[4], 1, 1] }
    }

    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let (capacities, others) = split_capacities::<14>(call.constants);
        let [
            heads,
            key_heads,
            keys,
            values,
            pitch,
            q_at,
            k_at,
            v_at,
            gate_pitch,
            a_at,
            b_at,
            stride,
            flags,
            slots,
        ] = others;
        let [heads, key_heads, keys, values] = [heads, key_heads, keys, values].map(|n| n as usize);
        let [pitch, q_at, k_at, v_at] = [pitch, q_at, k_at, v_at].map(|n| n as usize);
        let [gate_pitch, a_at, b_at] = [gate_pitch, a_at, b_at].map(|n| n as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        // SAFETY: as above.
        let (gates, weights) = unsafe { (call.read::<f32>(2), call.read::<f32>(3)) };
        let (lists, size) = (Lists::new(params, capacities), keys * values);
        let (is_delta, is_vector) = (flags & DELTA > 0, flags & VECTOR > 0);
        let mut state = vec![0.0_f32; size];
        let (mut of_q, mut of_k) = (vec![0.0_f32; values], vec![0.0_f32; values]);
        for head in groups.start as usize..groups.end as usize {
            let key_head = if flags & TILED > 0 { head % key_heads } else { head / (heads / key_heads) };
            let (sharing, stride) = (heads / key_heads, stride as usize);
            let gate = head / sharing * stride + head % sharing;
            let a = if flags & LOGARITHM > 0 { -weights[head].exp() } else { weights[head] };
            let direct = if is_delta { 0.0 } else { weights[2 * heads + head] };
            let of_head = head * keys..(head + 1) * keys;
            let biases =
                if is_vector { &weights[heads..][of_head.clone()] } else { &weights[heads + head..] };
            for run in runs(lists, slots) {
                let stored = |slot: usize| {
                    let at = (slot * heads + head) * size;
                    // SAFETY: each group accesses its own head of the states.
                    unsafe { call.write::<f32>(4, at..at + size) }
                };
                match run.from {
                    Some(slot) => state.copy_from_slice(stored(slot)),
                    None => state.fill(0.0),
                }
                for row in run.rows {
                    let part = |column: usize, count: usize| &x[row * pitch + column..][..count];
                    let (q, k) = (part(q_at + key_head * keys, keys), part(k_at + key_head * keys, keys));
                    let v = part(v_at + head * values, values);
                    let gates = &gates[row * gate_pitch..][..gate_pitch];
                    let (delta, decay) = if is_vector {
                        let decays = gates[a_at..][of_head.clone()].iter().zip(biases);
                        for (line, (gate, bias)) in state.chunks_exact_mut(values).zip(decays) {
                            let decay = (a * softplus(gate + bias)).exp();
                            line.iter_mut().for_each(|s| *s *= decay);
                        }
                        (0.0, 1.0)
                    } else {
                        let delta = softplus(gates[a_at + gate] + biases[0]);
                        (delta, (a * delta).exp())
                    };
                    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
                    let (strength, q_scale, k_scale) = match is_delta {
                        true => (
                            1.0 / (1.0 + (-gates[b_at + gate]).exp()),
                            1.0 / ((dot(q, q) + 1e-6) * keys as f32).sqrt(),
                            1.0 / (dot(k, k) + 1e-6).sqrt(),
                        ),
                        false => (delta, 1.0, 1.0),
                    };
                    let both = dot(q, k) * q_scale * k_scale;
                    of_q.fill(0.0);
                    of_k.fill(0.0);
                    for (line, (q, k)) in state.chunks_exact(values).zip(q.iter().zip(k)) {
                        for ((of_q, of_k), s) in of_q.iter_mut().zip(&mut of_k).zip(line) {
                            *of_q += q * s;
                            *of_k += k * s;
                        }
                    }
                    let at = (row * heads + head) * values;
                    // SAFETY: each group writes its own head of every row.
                    let out = unsafe { call.write::<f32>(5, at..at + values) };
                    for (((out, of_q), of_k), v) in out.iter_mut().zip(&of_q).zip(&mut of_k).zip(v) {
                        let known = if is_delta { decay * k_scale * *of_k } else { 0.0 };
                        let added = strength * (v - known);
                        *out = decay * q_scale * of_q + both * added + direct * v;
                        *of_k = k_scale * added;
                    }
                    for (line, k) in state.chunks_exact_mut(values).zip(k) {
                        line.iter_mut().zip(&of_k).for_each(|(s, added)| *s = *s * decay + k * added);
                    }
                }
                if let Some(slot) = run.to {
                    stored(slot).copy_from_slice(&state);
                }
            }
        }
    }
}

/// Gated norm.
pub(crate) struct GatedNorm;

// SAFETY: `row` reads bindings 1 to 3 as floats, and writes its row of binding 4 once.
unsafe impl RowWise for GatedNorm {
    const KERNEL: Kernel = Kernel::GatedNorm;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, groups, width, count, pitch, first, stride, _, order, function] = row.constants::<11>();
        let [groups, width, count, pitch] = [groups, width, count, pitch].map(|n| n as usize);
        let (first, stride, epsilon) = (first as usize, stride as usize, row.float(8));
        let (x, gates) = (row.read(1, groups * width), row.read(2, pitch));
        let is_gated_first = order == Order::GateFirst as u32;
        let out = row.write(4, groups * width);
        for (group, (out, x)) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
            let gates = &gates[first + group * stride..][..width];
            for ((out, x), gate) in out.iter_mut().zip(x).zip(gates) {
                let factor = if function == Function::Silu as u32 { *gate } else { 1.0 };
                *out = x * (factor / (1.0 + (-gate).exp()));
            }
            if order == Order::NoNorm as u32 {
                continue;
            }
            let scale = norm_scale(s, if is_gated_first { out } else { x }, epsilon);
            let weights = &row.all::<f32>(3)[if count == width { 0 } else { group * width }..];
            out.iter_mut().zip(weights).for_each(|(out, weight)| *out *= scale * weight);
        }
    }
}

/// Gated heads.
pub(crate) struct GatedHeads;

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for GatedHeads {
    const KERNEL: Kernel = Kernel::GatedHeads;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, heads, kv_heads, dimension, _] = row.constants::<6>();
        let [heads, kv_heads, dimension] = [heads, kv_heads, dimension].map(|n| n as usize);
        let epsilon = row.float(5);
        let x = row.read(1, 2 * (heads + kv_heads) * dimension);
        let out = row.write(3, (heads + 2 * kv_heads) * dimension);
        for (head, out) in out.chunks_exact_mut(dimension.max(1)).enumerate() {
            let source = if head < heads { 2 * head } else { head + heads };
            let x = &x[source * dimension..][..dimension];
            out.copy_from_slice(x);
            if head >= heads + kv_heads {
                continue;
            }
            let weights = &row.all::<f32>(2)[if head < heads { 0 } else { dimension }..];
            let scale = norm_scale(s, x, epsilon);
            out.iter_mut().zip(weights).for_each(|(out, weight)| *out *= scale * weight);
        }
    }
}
