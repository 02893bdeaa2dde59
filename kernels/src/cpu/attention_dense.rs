//! Dense attention, computed query by query, 64 positions at a time.

use super::HostKernel;
use super::elements::Element;
use super::isa::Isa;
use crate::abi::array;
use crate::attention_dense::{self, Mask, QUERIES, STEP};
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// Dense attention. An output is the mean of the values at all positions that the mask allows, weighted by
/// the softmax of their scores.
pub(crate) struct AttentionDense<E>(PhantomData<E>);

impl<E: Element> HostKernel for AttentionDense<E> {
    const KERNEL: Kernel = Kernel::AttentionDense(E::TYPE);

    fn grid(constants: &[u32]) -> [u32; 3] {
        attention_dense::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let constants = array::<23>(call.constants).map(|c| c as usize);
        let [_, heads, kv_heads, m, n, d, strides @ .., _, _, causal, window, prefix] = constants;
        let place = |tensor: usize, sequence: usize, head: usize, row: usize| {
            let strides = &strides[tensor * 3..];
            sequence * strides[0] + head * strides[1] + row * strides[2]
        };
        // SAFETY: no thread writes these bindings; all bit patterns are valid for this type.
        let (q, k, v) = unsafe { (call.read::<E>(0), call.read::<E>(1), call.read::<E>(2)) };
        let (sharing, group_queries) = (heads / kv_heads, QUERIES as usize);
        let queries = m * sharing;
        let tiles = queries.div_ceil(group_queries);
        for group in groups.start as usize..groups.end as usize {
            let (tile, kv_head, sequence) =
                (group % tiles, group / tiles % kv_heads, group / tiles / kv_heads);
            let seen = Seen {
                mask: Mask { rows: m, positions: n, causal: causal != 0, window, prefix },
                scale: call.float(18),
                cap: call.float(19),
                keys: Rows { values: k, first: place(1, sequence, kv_head, 0), stride: strides[5] },
                sums: Rows { values: v, first: place(2, sequence, kv_head, 0), stride: strides[8] },
            };
            for query in tile * group_queries..queries.min((tile + 1) * group_queries) {
                let (row, head) = (query / sharing, kv_head * sharing + query % sharing);
                let from = &q[place(0, sequence, head, row)..][..d];
                let to = place(3, sequence, head, row);
                // SAFETY: each query has its own row, and rows of the result do not overlap.
                let out = unsafe { call.write::<f32>(3, to..to + d) };
                seen.by(s, from, row, out);
            }
        }
    }
}

/// Rows of one head of a tensor, along with the stride between them.
struct Rows<'a, E> {
    values: &'a [E],
    first: usize,
    stride: usize,
}

impl<'a, E> Rows<'a, E> {
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> &'a [E] {
        &self.values[self.first + row * self.stride..][..width]
    }
}

/// Inputs that the queries of one head share: mask, score parameters, keys and values.
struct Seen<'a, E> {
    mask: Mask,
    scale: f32,
    cap: f32,
    keys: Rows<'a, E>,
    sums: Rows<'a, E>,
}

impl<E: Element> Seen<'_, E> {
    /// Computes the output of `query`, which is in row `row`.
    #[inline(always)]
    fn by<S: Isa>(&self, s: S, query: &[E], row: usize, out: &mut [f32]) {
        let (span, prefix) = (self.mask.span(row), self.mask.prefix.min(self.mask.positions));
        let end = span.end.max(prefix);
        let (mut largest, mut total) = (f32::MIN, 0.0);
        out.fill(0.0);
        for first in (0..end).step_by(STEP) {
            let mut scores = [None; STEP];
            for (position, score) in (first..end).zip(&mut scores) {
                if position < prefix || span.contains(&position) {
                    *score = Some(self.capped(dot(s, query, self.keys.row(position, query.len()))));
                }
            }
            let before = largest;
            largest = scores.iter().flatten().fold(largest, |largest, score| largest.max(*score));
            let correction = (before - largest).exp();
            total *= correction;
            out.iter_mut().for_each(|x| *x *= correction);
            for (position, score) in (first..end).zip(scores) {
                let Some(score) = score else { continue };
                let weight = (score - largest).exp();
                total += weight;
                add(s, out, weight, self.sums.row(position, query.len()));
            }
        }
        if total != 0.0 {
            out.iter_mut().for_each(|x| *x /= total);
        }
    }

    /// Converts the product q·k to a score.
    #[inline(always)]
    fn capped(&self, dot: f32) -> f32 {
        let score = dot * self.scale;
        if self.cap == 0.0 { score } else { self.cap * (score / self.cap).tanh() }
    }
}

#[inline(always)]
fn dot<S: Isa, E: Element>(s: S, a: &[E], b: &[E]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sum = s.zero();
    for (a, b) in a.iter().zip(b) {
        sum = s.fma(E::load(s, a), E::load(s, b), sum);
    }
    a_rest.iter().zip(b_rest).fold(s.sum(sum), |sum, (a, b)| sum + a.value() * b.value())
}

/// Adds `weight · values` to `out`.
#[inline(always)]
fn add<S: Isa, E: Element>(s: S, out: &mut [f32], weight: f32, values: &[E]) {
    let ((out, out_rest), (values, rest)) = (out.as_chunks_mut::<16>(), values.as_chunks::<16>());
    for (out, values) in out.iter_mut().zip(values) {
        let sum = s.fma(s.splat(weight), E::load(s, values), s.load(out));
        s.store(sum, out);
    }
    out_rest.iter_mut().zip(rest).for_each(|(out, value)| *out += weight * value.value());
}
