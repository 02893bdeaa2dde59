//! Split attention. Programs never split attention on CPUs: CPUs run too few threads to need splits, and a single launch
//! is faster. Only attention with sinks runs here, with one split, which the kernel of attention computes. Tests use the
//! plain implementation of several splits to check other devices.

use super::HostKernel;
use super::attention::Attention;
use super::isa::Isa;
use super::kv::{Stored, pair, part_bytes};
use super::launch::{Lists, count};
use super::packed::Packed;
use super::row::{Row, RowWise};
use super::rows::block;
use crate::abi::split_capacities;
use crate::attention::{self, partial};
use crate::kernel::{Activations, Kernel};
use crate::params::BLOCK_TOKENS;
use crate::variant::NEVER;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// First launch: computes attention over each split of the positions.
pub(crate) struct Partial<K, V>(PhantomData<(K, V)>);

impl<K: Stored, V: Stored> HostKernel for Partial<K, V> {
    const KERNEL: Kernel = Kernel::AttentionPartial(pair(K::TYPE, V::TYPE));
    const MIN_ROWS: u32 = NEVER;

    fn grid(constants: &[u32]) -> [u32; 3] {
        if constants[12] == 1 { attention::grid(constants) } else { partial::grid(constants) }
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        if call.constants[12] == 1 {
            // SAFETY: guaranteed by the caller. The constants tell the kernel what it computes.
            return unsafe { S::function::<Attention<K, V>>()(call, groups) };
        }
        let (capacities, [heads, kv_heads, head_dim, cache_blocks, _, stride, window, _, splits, word]) =
            split_capacities(call.constants);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, q) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        // SAFETY: as above.
        let (keys, values) = unsafe { (call.read::<u8>(2), call.read::<u8>(3)) };
        let (lists, used) = (Lists::new(params, capacities), count(params, word, capacities[0]));
        let [rows, heads, kv_heads, head_dim, stride, splits] =
            [capacities[0], heads, kv_heads, head_dim, stride, splits].map(|count| count as usize);
        for group in groups.start as usize..groups.end as usize {
            let (split, kv_head, row) =
                (group % splits, group / splits % kv_heads, group / splits / kv_heads);
            if row >= used {
                continue;
            }
            let seen = lists.position(row) + 1;
            let table = lists.table(row);
            let table = table.and_then(|table| table.get(..seen.div_ceil(BLOCK_TOKENS)));
            let table = table.filter(|table| table.iter().all(|block| *block < cache_blocks));
            let visible = attention::window_start(seen, window)..seen;
            let run = if table.is_some() { partial::run(visible, splits, split) } else { 0..0 };
            let table = table.unwrap_or(&[]);
            // Returns this head's part of a position's block, and the slot in the block.
            let place = |position: usize| {
                let part = table[position / BLOCK_TOKENS] as usize * kv_heads + kv_head;
                let cut = |bytes: usize| part * bytes..(part + 1) * bytes;
                let (keys, values) =
                    (&keys[cut(part_bytes::<K>(head_dim))], &values[cut(part_bytes::<V>(head_dim))]);
                (keys, values, position % BLOCK_TOKENS)
            };
            let sharing = heads / kv_heads;
            for head in kv_head * sharing..(kv_head + 1) * sharing {
                let q = &q[row * stride + head * head_dim..][..head_dim];
                let score = |position: usize| {
                    let (keys, _, slot) = place(position);
                    let key = |dim: usize| K::key(keys, head_dim, slot, dim);
                    let dot: f64 = q.iter().enumerate().map(|(d, q)| f64::from(*q) * f64::from(key(d))).sum();
                    let (score, cap) = (dot * f64::from(call.float(8)), f64::from(call.float(11)));
                    if cap == 0.0 { score } else { cap * (score / cap).tanh() }
                };
                let scores: Vec<f64> = run.clone().map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let at = (row * heads + head) * splits + split;
                let sums = rows * heads * splits * head_dim + at * 2;
                // SAFETY: each group writes its own split of its own heads.
                unsafe { call.write::<f32>(4, sums..sums + 2) }
                    .copy_from_slice(&[largest as f32, sum as f32]);
                if run.is_empty() {
                    continue;
                }
                // SAFETY: as above.
                let out = unsafe { call.write::<f32>(4, at * head_dim..(at + 1) * head_dim) };
                for (dim, out) in out.iter_mut().enumerate() {
                    let value = |position: usize| {
                        let (_, values, slot) = place(position);
                        f64::from(V::value(values, head_dim, slot, dim))
                    };
                    let total: f64 = run.clone().zip(&weights).map(|(p, weight)| weight * value(p)).sum();
                    *out = (total / sum) as f32;
                }
            }
        }
    }
}

/// Partial results of all splits in a launch.
struct Runs<'a> {
    means: &'a [f32],
    sums: &'a [[f32; 2]],
    heads: usize,
    head_dim: usize,
    splits: usize,
}

impl<'a> Runs<'a> {
    #[inline(always)]
    fn new(row: Row<'a>) -> Self {
        let [rows, _, heads, head_dim, splits] = row.constants().map(|count| count as usize);
        let runs = rows * heads * splits;
        let (means, sums) = row.all::<f32>(1).split_at(runs * head_dim);
        Self { means, sums: &sums.as_chunks().0[..runs], heads, head_dim, splits }
    }

    /// Combines the splits of row `row` and writes the result to `out`. `sinks` has one sink per head, or is empty.
    #[inline(always)]
    fn merge(&self, row: usize, sinks: &[f32], out: &mut [f32]) {
        let mut values = vec![0.0; self.head_dim];
        for (head, out) in out.chunks_exact_mut(self.head_dim.max(1)).enumerate().take(self.heads) {
            let runs = (row * self.heads + head) * self.splits..(row * self.heads + head + 1) * self.splits;
            let used = || runs.clone().filter(|run| self.sums[*run][1] != 0.0);
            let sink = sinks.get(head).copied().unwrap_or(f32::NEG_INFINITY);
            let largest = used().map(|run| self.sums[run][0]).fold(sink, f32::max);
            let mut of_runs = 0.0;
            values.fill(0.0);
            for run in used() {
                let [run_largest, sum] = self.sums[run];
                let weight = f64::from(run_largest - largest).exp() * f64::from(sum);
                of_runs += weight;
                let means = &self.means[run * self.head_dim..][..self.head_dim];
                values.iter_mut().zip(means).for_each(|(value, mean)| *value += weight * f64::from(*mean));
            }
            let of_sink = if sinks.is_empty() { 0.0 } else { f64::from(sink - largest).exp() };
            let is_empty = of_runs == 0.0;
            out.iter_mut().zip(&values).for_each(|(out, value)| {
                *out = if is_empty { 0.0 } else { (value / (of_runs + of_sink)) as f32 };
            });
        }
    }
}

/// Second launch: combines splits into f32 values.
pub(crate) struct Merge;

// SAFETY: `row` reads binding 1 as floats, and writes its row of binding 2 once.
unsafe impl RowWise for Merge {
    const KERNEL: Kernel = Kernel::AttentionMerge(Activations::F32);
    const MIN_ROWS: u32 = NEVER;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let runs = Runs::new(row);
        runs.merge(row.index, &[], row.write(2, runs.heads * runs.head_dim));
    }
}

/// Second launch of attention with sinks.
pub(crate) struct MergeSinks;

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for MergeSinks {
    const KERNEL: Kernel = Kernel::AttentionMergeSinks;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let runs = Runs::new(row);
        let sinks = &row.all::<f32>(2)[..runs.heads];
        runs.merge(row.index, sinks, row.write(3, runs.heads * runs.head_dim));
    }
}

/// Second launch: combines splits into activations of type `O`.
pub(crate) struct PackedMerge<O>(PhantomData<O>);

// SAFETY: `row` reads binding 1 as floats, and writes its row of binding 2 once.
unsafe impl<O: Packed> RowWise for PackedMerge<O> {
    const KERNEL: Kernel = Kernel::AttentionMerge(O::TYPE);
    const MIN_ROWS: u32 = NEVER;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let runs = Runs::new(row);
        let mut values = vec![0.0; runs.heads * runs.head_dim];
        runs.merge(row.index, &[], &mut values);
        O::write(s, row, 2, values.len(), |b| block(s, &values, b));
    }
}
