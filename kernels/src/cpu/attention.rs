//! Attention over the paged KV cache.
//!
//! A group computes a tile of rows for one kv head. The rows of one sequence traverse the cache together, in
//! steps of [`attention::STEP_TOKENS`] positions. In each step, up to four queries share each load of a key.
//! The weighted sums of values are accumulated in the output buffer. The result of a query does not depend on
//! the other queries that share its loads.
//!
//! With the constants of [`partial`](crate::attention::partial) and one split, the kernel computes this split: it also
//! writes the largest score and the sum of each query.

use super::HostKernel;
use super::isa::Isa;
use super::kv::{Stored, pair, part_bytes};
use super::launch::{Lists, count};
use crate::abi::split_capacities;
use crate::attention::{self, STEP_TOKENS, TILE_ROWS};
use crate::kernel::Kernel;
use crate::params::BLOCK_TOKENS;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// Number of cache blocks per step.
const STEP_BLOCKS: usize = STEP_TOKENS / BLOCK_TOKENS;

/// Maximum number of query heads that share a kv head and traverse the cache together.
const TILE_HEADS: usize = 8;

/// Maximum number of queries that a group processes at once. The group keeps the softmax state of all of
/// them.
const TILE_QUERIES: usize = TILE_ROWS as usize * TILE_HEADS;

/// Maximum number of queries that share a load of a key or value.
const MAX_SHARED: usize = 4;

/// Causal attention.
pub(crate) struct Attention<K, V>(PhantomData<(K, V)>);

impl<K: Stored, V: Stored> HostKernel for Attention<K, V> {
    const KERNEL: Kernel = Kernel::Attention(pair(K::TYPE, V::TYPE));

    fn grid(constants: &[u32]) -> [u32; 3] {
        attention::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let (plain, of_split) = call.constants.split_at(12);
        let (capacities, [heads, kv_heads, head_dim, cache_blocks, _, stride, window, _]) =
            split_capacities(plain);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, q) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        // SAFETY: as above.
        let (keys, values) = unsafe { (call.read::<u8>(2), call.read::<u8>(3)) };
        let lists = Lists::new(params, capacities);
        let tiles = call.grid[0].max(1);
        let rows = match of_split {
            [_, word] => 0..count(params, *word, capacities[0]),
            _ => lists.decode_rows()..lists.rows(),
        };
        for group in groups {
            let (tile, kv_head) = (group % tiles, (group / tiles) as usize);
            let run = Head {
                call,
                lists,
                q,
                keys,
                values,
                scale: call.float(8),
                cap: call.float(11),
                window,
                stride: stride as usize,
                heads: heads as usize,
                group_heads: (heads / kv_heads.max(1)) as usize,
                kv_heads: kv_heads as usize,
                kv_head,
                head_dim: head_dim as usize,
                cache_blocks,
                sums: (!of_split.is_empty()).then_some((capacities[0] * heads * head_dim) as usize),
            };
            let start = rows.start.max(tile as usize * TILE_ROWS as usize);
            let end = rows.end.min((tile as usize + 1) * TILE_ROWS as usize);
            // SAFETY: each group writes its own rows and heads.
            unsafe { run.rows::<S, K, V>(s, start, end) };
        }
    }
}

/// One kv head of a launch, along with the inputs of the launch.
struct Head<'a> {
    call: &'a HostCall<'a>,
    lists: Lists<'a>,
    q: &'a [f32],
    keys: &'a [u8],
    values: &'a [u8],
    scale: f32,
    cap: f32,
    window: u32,
    stride: usize,
    heads: usize,
    group_heads: usize,
    kv_heads: usize,
    kv_head: usize,
    head_dim: usize,
    cache_blocks: u32,
    /// First value in the output that belongs to the largest scores and sums of a split.
    sums: Option<usize>,
}

/// A query, identified by its row in the launch, its head, and its position in the sequence.
#[derive(Clone, Copy, Default)]
struct Query {
    row: usize,
    head: usize,
    position: usize,
}

impl Query {
    /// Returns the first position of the query's window.
    #[inline(always)]
    fn first(&self, window: u32) -> usize {
        attention::window_start(self.position + 1, window)
    }

    /// Returns the positions to which the query attends in the step that starts at position `start`, relative
    /// to the start.
    #[inline(always)]
    fn visible(&self, start: usize, window: u32) -> Range<usize> {
        let in_step = |position: usize| position.saturating_sub(start).min(STEP_TOKENS);
        in_step(self.first(window))..in_step(self.position + 1)
    }
}

/// State of a query's streaming softmax: the largest score so far, and the sum of weights per lane.
#[derive(Clone, Copy)]
struct State<S: Isa> {
    largest: f32,
    sum: S::F,
}

/// Scores and softmax weights of the queries that share loads in a step. Outside of the positions to which a
/// query attends, they are arbitrary.
struct Shared<S: Isa> {
    scores: [[S::F; STEP_BLOCKS]; MAX_SHARED],
    weights: [[[f32; BLOCK_TOKENS]; STEP_BLOCKS]; MAX_SHARED],
}

impl<'a> Head<'a> {
    /// Returns the block table of a row, or `None` if the row is invalid. A row is invalid if its sequence
    /// does not exist, or if it attends to a position without a valid block.
    #[inline(always)]
    fn table(&self, row: usize) -> Option<&'a [u32]> {
        let table = self.lists.table(row)?;
        let seen = table.get(..=self.lists.position(row) / BLOCK_TOKENS)?;
        seen.iter().all(|block| *block < self.cache_blocks).then_some(table)
    }

    /// Returns the output values of a query.
    ///
    /// # Safety
    /// The requirements of [`HostCall::write`] apply: the group must own its rows of its heads.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // Same as `HostCall::write`.
    unsafe fn out(&self, query: &Query) -> &mut [f32] {
        let at = (query.row * self.heads + query.head) * self.head_dim;
        // SAFETY: guaranteed by the caller.
        unsafe { self.call.write(4, at..at + self.head_dim) }
    }

    /// Writes the largest score and the sum of a query, if the launch computes a split.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn put_sums(&self, query: &Query, largest_and_sum: [f32; 2]) {
        if let Some(sums) = self.sums {
            let at = sums + (query.row * self.heads + query.head) * 2;
            // SAFETY: guaranteed by the caller.
            unsafe { self.call.write(4, at..at + 2) }.copy_from_slice(&largest_and_sum);
        }
    }

    /// Computes rows `row..end` of the launch. Computes consecutive rows of one sequence together.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn rows<S: Isa, K: Stored, V: Stored>(&self, s: S, mut row: usize, end: usize) {
        let first_head = self.kv_head * self.group_heads;
        let heads = first_head..first_head + self.group_heads;
        while row < end {
            let Some(table) = self.table(row) else {
                for query in heads.clone().map(|head| Query { row, head, position: 0 }) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.out(&query) }.fill(0.0);
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.put_sums(&query, [0.0; 2]) };
                }
                row += 1;
                continue;
            };
            let sequence = self.lists.sequence(row);
            let same = |r: &usize| self.lists.sequence(*r) == sequence && self.table(*r).is_some();
            let run = row..(row + 1..end).take_while(same).last().unwrap_or(row) + 1;
            for first in heads.clone().step_by(TILE_HEADS) {
                let mut queries = [Query::default(); TILE_QUERIES];
                let mut count = 0;
                for row in run.clone() {
                    for head in first..heads.end.min(first + TILE_HEADS) {
                        queries[count] = Query { row, head, position: self.lists.position(row) };
                        count += 1;
                    }
                }
                // SAFETY: guaranteed by the caller.
                unsafe { self.run::<S, K, V>(s, table, &queries[..count]) };
            }
            row = run.end;
        }
    }

    /// Computes the outputs of `queries`, which all belong to one sequence. Processes all positions to which
    /// at least one of them attends.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn run<S: Isa, K: Stored, V: Stored>(&self, s: S, table: &[u32], queries: &[Query]) {
        let mut states = [State::<S> { largest: f32::NEG_INFINITY, sum: s.zero() }; TILE_QUERIES];
        let mut shared = Shared::<S> {
            scores: [[s.zero(); STEP_BLOCKS]; MAX_SHARED],
            weights: [[[0.0; BLOCK_TOKENS]; STEP_BLOCKS]; MAX_SHARED],
        };
        for query in queries {
            // SAFETY: guaranteed by the caller.
            unsafe { self.out(query) }.fill(0.0);
        }
        let last = queries.iter().map(|q| q.position).max().unwrap_or(0);
        let first = queries.iter().map(|q| q.first(self.window)).min().unwrap_or(0);
        for step in first / STEP_TOKENS..=last / STEP_TOKENS {
            let blocks =
                &table[step * STEP_BLOCKS..=(last / BLOCK_TOKENS).min(step * STEP_BLOCKS + STEP_BLOCKS - 1)];
            let mut at = 0;
            while at < queries.len() {
                let count = [4, 2, 1].into_iter().find(|count| at + count <= queries.len()).unwrap_or(1);
                let (queries, states) = (&queries[at..at + count], &mut states[at..at + count]);
                // SAFETY: guaranteed by the caller.
                unsafe { self.step::<S, K, V>(s, step, blocks, queries, states, &mut shared) };
                at += count;
            }
        }
        for (query, state) in queries.iter().zip(&states) {
            let sum = s.sum(state.sum);
            let inverse = 1.0 / sum;
            // SAFETY: guaranteed by the caller.
            unsafe { self.put_sums(query, [state.largest, sum]) };
            // SAFETY: guaranteed by the caller.
            unsafe { self.out(query) }.iter_mut().for_each(|v| *v *= inverse);
        }
    }

    /// Adds the positions of one step to the results of 1, 2 or 4 queries. Only the loops over keys and
    /// values have code for each number of queries, because this code takes long to compile.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn step<S: Isa, K: Stored, V: Stored>(
        &self,
        s: S,
        step: usize,
        blocks: &[u32],
        queries: &[Query],
        states: &mut [State<S>],
        Shared { scores, weights }: &mut Shared<S>,
    ) {
        let start = step * STEP_TOKENS;
        match queries.len() {
            4 => self.scores::<S, K, 4>(s, blocks, queries, scores),
            2 => self.scores::<S, K, 2>(s, blocks, queries, scores),
            _ => self.scores::<S, K, 1>(s, blocks, queries, scores),
        }
        for (i, query) in queries.iter().enumerate() {
            let visible = query.visible(start, self.window);
            if !visible.is_empty() {
                let factors = [self.scale, self.cap];
                let correction = soften(s, &scores[i], visible, factors, &mut states[i], &mut weights[i]);
                // SAFETY: guaranteed by the caller.
                unsafe { self.out(query) }.iter_mut().for_each(|v| *v *= correction);
            }
        }
        // Processes the positions that all queries attend to together, between the other positions of each
        // query. The order of a query's positions thus does not depend on the other queries.
        let visible = |query: &Query| query.visible(start, self.window);
        let from = queries.iter().map(|q| visible(q).start).max().unwrap_or(0);
        let to = queries.iter().map(|q| visible(q).end).min().unwrap_or(0).max(from);
        let is_shared = queries.len() > 1;
        for is_after in [false, true] {
            for (i, query) in queries.iter().enumerate() {
                let visible = visible(query);
                let positions = match (is_shared, is_after) {
                    (false, false) => visible,
                    (false, true) => continue,
                    (true, false) => visible.start..visible.end.min(from),
                    (true, true) => visible.start.max(to)..visible.end,
                };
                // SAFETY: guaranteed by the caller.
                unsafe { self.weigh::<S, V, 1>(s, blocks, &queries[i..], &weights[i..], positions) };
            }
            if !is_after && is_shared {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    if queries.len() == 4 {
                        self.weigh::<S, V, 4>(s, blocks, queries, weights, from..to);
                    } else {
                        self.weigh::<S, V, 2>(s, blocks, queries, weights, from..to);
                    }
                }
            }
        }
    }

    /// Returns the part of a block of keys or values that belongs to this kv head.
    #[inline(always)]
    fn part<'b, E: Stored>(&self, cache: &'b [u8], block: u32) -> &'b [u8] {
        let bytes = part_bytes::<E>(self.head_dim);
        &cache[(block as usize * self.kv_heads + self.kv_head) * bytes..][..bytes]
    }

    /// Computes q·k for the first `N` queries and the positions of `blocks`. Scores beyond the last block are
    /// arbitrary.
    #[inline(always)]
    fn scores<S: Isa, E: Stored, const N: usize>(
        &self,
        s: S,
        blocks: &[u32],
        queries: &[Query],
        scores: &mut [[S::F; STEP_BLOCKS]],
    ) {
        let mut q = [&self.q[..0]; N];
        for (q, query) in q.iter_mut().zip(queries) {
            *q = &self.q[query.row * self.stride + query.head * self.head_dim..][..self.head_dim];
        }
        let lanes = |block: u32| E::lanes(self.part::<E>(self.keys, block), self.head_dim);
        let mut keys = [lanes(blocks[0]); STEP_BLOCKS];
        for (keys, block) in keys.iter_mut().zip(blocks) {
            *keys = lanes(*block);
        }
        let mut sums = [[s.zero(); STEP_BLOCKS]; N];
        for dim in 0..self.head_dim {
            let mut k = [s.zero(); STEP_BLOCKS];
            for b in 0..STEP_BLOCKS {
                k[b] = E::keys(s, keys[b], dim);
            }
            for n in 0..N {
                let q = s.splat(q[n][dim]);
                for b in 0..STEP_BLOCKS {
                    sums[n][b] = s.fma(k[b], q, sums[n][b]);
                }
            }
        }
        scores[..N].copy_from_slice(&sums);
    }

    /// Adds weight · value to the outputs of the first `N` queries, for each of `positions` in the step.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn weigh<S: Isa, E: Stored, const N: usize>(
        &self,
        s: S,
        blocks: &[u32],
        queries: &[Query],
        weights: &[[[f32; BLOCK_TOKENS]; STEP_BLOCKS]],
        positions: Range<usize>,
    ) {
        let (queries, weights): (&[_; N], &[_; N]) = (&queries.as_chunks().0[0], &weights.as_chunks().0[0]);
        let mut dim = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            while self.head_dim.is_multiple_of(16) && dim + 64 <= self.head_dim {
                self.weigh_lanes::<S, E, N, 4>(s, blocks, queries, weights, positions.clone(), dim);
                dim += 64;
            }
            while self.head_dim.is_multiple_of(16) && dim < self.head_dim {
                self.weigh_lanes::<S, E, N, 1>(s, blocks, queries, weights, positions.clone(), dim);
                dim += 16;
            }
        }
        for (query, weights) in queries.iter().zip(weights) {
            for dim in dim..self.head_dim {
                // SAFETY: guaranteed by the caller.
                let out = unsafe { &mut self.out(query)[dim] };
                for p in positions.clone() {
                    let values = self.part::<E>(self.values, blocks[p / BLOCK_TOKENS]);
                    let value = E::value(values, self.head_dim, p % BLOCK_TOKENS, dim);
                    *out += weights[p / BLOCK_TOKENS][p % BLOCK_TOKENS] * value;
                }
            }
        }
    }

    /// Computes `L` × 16 dimensions of [`Head::weigh`], for heads whose dimension is a multiple of 16.
    ///
    /// # Safety
    /// The requirements of [`Head::out`] apply.
    #[inline(always)]
    unsafe fn weigh_lanes<S: Isa, E: Stored, const N: usize, const L: usize>(
        &self,
        s: S,
        blocks: &[u32],
        queries: &[Query; N],
        weights: &[[[f32; BLOCK_TOKENS]; STEP_BLOCKS]; N],
        positions: Range<usize>,
        dim: usize,
    ) {
        let mut sums = [[s.zero(); L]; N];
        for n in 0..N {
            // SAFETY: guaranteed by the caller.
            let out = unsafe { self.out(&queries[n]) };
            for l in 0..L {
                sums[n][l] = s.load(&out[dim..].as_chunks().0[l]);
            }
        }
        let row = self.head_dim / 16;
        for (b, block) in blocks.iter().enumerate() {
            let values = E::lanes(self.part::<E>(self.values, *block), self.head_dim);
            let slots = positions.start.max(b * BLOCK_TOKENS)..positions.end.min((b + 1) * BLOCK_TOKENS);
            for p in slots {
                let slot = p - b * BLOCK_TOKENS;
                let mut v = [s.zero(); L];
                for l in 0..L {
                    v[l] = E::values(s, values, slot * row + dim / 16 + l);
                }
                for n in 0..N {
                    let weight = s.splat(weights[n][b][slot]);
                    for l in 0..L {
                        sums[n][l] = s.fma(v[l], weight, sums[n][l]);
                    }
                }
            }
        }
        for n in 0..N {
            // SAFETY: guaranteed by the caller.
            let out = unsafe { self.out(&queries[n]) };
            for l in 0..L {
                s.store(sums[n][l], &mut out[dim..].as_chunks_mut().0[l]);
            }
        }
    }
}

/// Returns cap · tanh(score / cap).
#[inline(always)]
fn capped<S: Isa>(s: S, score: S::F, cap: f32) -> S::F {
    let e = s.exp(s.mul(score, s.splat(2.0 / cap)));
    s.sub(s.splat(cap), s.div(s.splat(2.0 * cap), s.add(s.splat(1.0), e)))
}

/// Converts the scores of a step's positions `visible` to softmax weights. `factors` are the scale and the
/// cap. Returns the factor that rescales the results of earlier steps.
#[inline(always)]
fn soften<S: Isa>(
    s: S,
    scores: &[S::F; STEP_BLOCKS],
    visible: Range<usize>,
    [scale, cap]: [f32; 2],
    state: &mut State<S>,
    weights: &mut [[f32; BLOCK_TOKENS]; STEP_BLOCKS],
) -> f32 {
    let none = s.splat(f32::NEG_INFINITY);
    let mut scaled = *scores;
    let mut largest = none;
    let count = |end: usize, b: usize| end.saturating_sub(b * BLOCK_TOKENS).min(BLOCK_TOKENS);
    for b in 0..STEP_BLOCKS {
        scaled[b] = s.mul(scores[b], s.splat(scale));
        if cap != 0.0 {
            scaled[b] = capped(s, scaled[b], cap);
        }
        scaled[b] = s.keep(scaled[b], count(visible.end, b), none);
        scaled[b] = s.keep(none, count(visible.start, b), scaled[b]);
        largest = s.max(largest, scaled[b]);
    }
    let before = state.largest;
    state.largest = s.largest(largest).max(before);
    let mut correction = [0.0; 16];
    s.store(s.exp(s.splat(before - state.largest)), &mut correction);
    state.sum = s.mul(state.sum, s.splat(correction[0]));
    for b in 0..STEP_BLOCKS {
        let weight = s.exp(s.sub(scaled[b], s.splat(state.largest)));
        let weight = s.keep(weight, count(visible.end, b), s.zero());
        let weight = s.keep(s.zero(), count(visible.start, b), weight);
        state.sum = s.add(state.sum, weight);
        s.store(weight, &mut weights[b]);
    }
    correction[0]
}
