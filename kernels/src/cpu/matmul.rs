//! Matrix products.
//!
//! A group computes [`matmul::TASK_ROWS`] columns of y for all rows of x. The kernels for f32 and int8
//! activations process a tile of rows in blocks of 32 columns of x. They unpack the weights of a block once
//! and multiply them by every row of the tile. For each row, they compute the sum of the block in registers
//! and add it to the row's total. The total of a single row stays in registers, too. The order of summation
//! does not depend on the number of rows.

use super::formats::{Format, Of, Quantised, Quants};
use super::isa::Isa;
use super::launch::count;
use super::{HostKernel, product};
use crate::abi::array;
use crate::kernel::{Activations, Kernel};
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, group_bytes};
use crate::matmul;
use crate::quantize::{row_bytes, scales_offset, sums_offset};
use ragtag_hal::HostCall;
use std::ops::Range;

/// Number of rows of x that share unpacked weights. Their totals fit into the L1 cache.
const TILE: usize = 32;

/// Number of groups of 16 weight rows per task.
const TASK_GROUPS: usize = matmul::TASK_ROWS as usize / GROUP_ROWS;

/// Part of y that belongs to a task.
#[derive(Clone, Copy)]
struct Output<'a> {
    call: &'a HostCall<'a>,
    n: usize,
    stride: usize,
    accumulate: bool,
    column: usize,
}

impl Output<'_> {
    /// Writes the sums of the row groups for row `row` of x.
    ///
    /// # Safety
    /// The requirements of [`HostCall::write`] apply: the task must own these columns.
    #[inline(always)]
    unsafe fn put<S: Isa>(&self, s: S, row: usize, sums: &[S::F; TASK_GROUPS]) {
        for (r, sum) in sums.iter().enumerate() {
            let column = self.column + r * GROUP_ROWS;
            if column >= self.n {
                return;
            }
            let at = row * self.stride + column;
            // SAFETY: guaranteed by the caller.
            let y = unsafe { self.call.write::<f32>(3, at..at + GROUP_ROWS.min(self.n - column)) };
            let mut lanes = [0.0; 16];
            if self.accumulate {
                lanes[..y.len()].copy_from_slice(y);
                let before = s.load(&lanes);
                s.store(s.add(before, *sum), &mut lanes);
            } else {
                s.store(*sum, &mut lanes);
            }
            y.copy_from_slice(&lanes[..y.len()]);
        }
    }
}

/// Distance in bytes between the weights that a task reads and the weights that it prefetches. Software
/// prefetching helps because hardware prefetchers do not cross page boundaries.
const AHEAD_BYTES: usize = 2048;

/// Prefetches the weights [`AHEAD_BYTES`] after a block. The groups of a matrix are adjacent, so these
/// weights may belong to a later group. At the end of the matrix, the function prefetches a few cache lines
/// that no task reads.
#[inline(always)]
fn prefetch<S: Isa, W: Format>(s: S, group: W::Group<'_>, block: usize) {
    for line in W::bytes(group, block).as_chunks::<64>().0 {
        s.prefetch(line.as_ptr().wrapping_add(AHEAD_BYTES));
    }
}

/// Weights of a launch. A task decodes its row groups one by one.
struct Tasks<'a> {
    weights: &'a [u8],
    n: usize,
    k: usize,
}

impl<'a> Tasks<'a> {
    /// Splits the bytes of row group `group` into the sections of its type.
    #[inline(always)]
    fn group<W: Format>(&self, group: usize) -> W::Group<'a> {
        let bytes = group_bytes(W::TYPE, self.k);
        W::open(&self.weights[group * bytes..][..bytes], self.k)
    }

    /// Returns the row groups of task `task`. If the last task has only one row group, it computes this group
    /// twice, because code for a single group would take long to compile.
    #[inline(always)]
    fn open<W: Format>(&self, task: usize) -> [W::Group<'a>; TASK_GROUPS] {
        let first = task * TASK_GROUPS;
        let has_second = (first + 1) * GROUP_ROWS < self.n;
        [self.group::<W>(first), self.group::<W>(first + usize::from(has_second))]
    }
}

/// Products with f32 activations. The kernel dequantizes weights to f32.
pub(crate) struct Exact<W>(Of<W>);

impl<W: Format> HostKernel for Exact<W> {
    const KERNEL: Kernel = product(W::TYPE, Activations::F32);

    fn grid(constants: &[u32]) -> [u32; 3] {
        matmul::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [rows, word, n, k, accumulate, stride] = array(call.constants);
        let [n, k, stride] = [n, k, stride].map(|count| count as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, weights, x) = unsafe { (call.read::<u32>(0), call.read::<u8>(1), call.read::<f32>(2)) };
        let x = &x[..count(params, word, rows) * k];
        let tasks = Tasks { weights, n, k };
        for task in groups.start as usize..groups.end as usize {
            let column = task * TASK_GROUPS * GROUP_ROWS;
            let out = Output { call, n, stride, accumulate: accumulate != 0, column };
            // SAFETY: each group writes its own columns.
            unsafe { exact::<S, W>(s, tasks.open::<W>(task), x, k, &out) };
        }
    }
}

/// Multiplies the row groups of a task by all rows of x.
///
/// # Safety
/// The requirements of [`Output::put`] apply.
#[inline(always)]
unsafe fn exact<S: Isa, W: Format>(
    s: S,
    groups: [W::Group<'_>; TASK_GROUPS],
    x: &[f32],
    k: usize,
    out: &Output<'_>,
) {
    if x.len() == k {
        let sums = exact_one::<S, W>(s, groups, x);
        // SAFETY: guaranteed by the caller.
        unsafe { out.put(s, 0, &sums) };
        return;
    }
    for (tile, x) in x.chunks(TILE * k).enumerate() {
        let mut totals = [[s.zero(); TASK_GROUPS]; TILE];
        let rows = x.len() / k;
        // Types without blocks are so easy to read that a few rows do not repay storing the values.
        if const { W::TYPE.block_values() == 1 } && rows <= 8 {
            for b in 0..k / COLUMN_BLOCK {
                for r in 0..TASK_GROUPS {
                    prefetch::<S, W>(s, groups[r], b);
                    let mut row = 0;
                    while row < rows {
                        let (x, totals) = (&x[row * k..], &mut totals[row..]);
                        row += match rows - row {
                            8.. if S::LARGE_TILES => exact_rows::<S, W, 8>(s, groups[r], r, x, k, b, totals),
                            4.. => exact_rows::<S, W, 4>(s, groups[r], r, x, k, b, totals),
                            2.. => exact_rows::<S, W, 2>(s, groups[r], r, x, k, b, totals),
                            _ => exact_rows::<S, W, 1>(s, groups[r], r, x, k, b, totals),
                        };
                    }
                }
            }
        } else {
            exact_tiles::<S, W>(s, groups, x, k, &mut totals);
        }
        for (row, sums) in totals[..rows].iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { out.put(s, tile * TILE + row, sums) };
        }
    }
}

/// Multiplies row groups by one row of x. Loads each weight into registers only once.
#[inline(always)]
fn exact_one<S: Isa, W: Format>(s: S, groups: [W::Group<'_>; TASK_GROUPS], x: &[f32]) -> [S::F; TASK_GROUPS] {
    let mut totals = [s.zero(); TASK_GROUPS];
    for (b, x) in x.as_chunks::<COLUMN_BLOCK>().0.iter().enumerate() {
        for r in 0..TASK_GROUPS {
            prefetch::<S, W>(s, groups[r], b);
            let block = W::block(s, groups[r], b);
            let mut sum = s.zero();
            for quad in 0..COLUMN_BLOCK / 4 {
                let values = W::quad(s, &block, quad);
                for i in 0..4 {
                    sum = s.fma(values[i], s.splat(x[quad * 4 + i]), sum);
                }
            }
            totals[r] = s.add(totals[r], sum);
        }
    }
    totals
}

/// Multiplies one block of columns of row group `r` by `T` rows of x, and returns `T`. Dequantizes each weight
/// in registers.
#[inline(always)]
fn exact_rows<S: Isa, W: Format, const T: usize>(
    s: S,
    group: W::Group<'_>,
    r: usize,
    x: &[f32],
    k: usize,
    block: usize,
    totals: &mut [[S::F; TASK_GROUPS]],
) -> usize {
    let mut rows = [&[0.0; COLUMN_BLOCK]; T];
    for t in 0..T {
        rows[t] = &x[t * k..][..k].as_chunks().0[block];
    }
    let weights = W::block(s, group, block);
    let mut sums = [s.zero(); T];
    for quad in 0..COLUMN_BLOCK / 4 {
        let values = W::quad(s, &weights, quad);
        for i in 0..4 {
            for t in 0..T {
                sums[t] = s.fma(values[i], s.splat(rows[t][quad * 4 + i]), sums[t]);
            }
        }
    }
    for t in 0..T {
        totals[t][r] = s.add(totals[t][r], sums[t]);
    }
    T
}

/// Multiplies the row groups of a task by at most [`TILE`] rows of x. Dequantizes each weight once.
#[inline(always)]
fn exact_tiles<S: Isa, W: Format>(
    s: S,
    groups: [W::Group<'_>; TASK_GROUPS],
    x: &[f32],
    k: usize,
    totals: &mut [[S::F; TASK_GROUPS]; TILE],
) {
    let rows = x.len() / k;
    let mut columns = [[s.zero(); TASK_GROUPS]; COLUMN_BLOCK];
    for b in 0..k / COLUMN_BLOCK {
        for r in 0..TASK_GROUPS {
            prefetch::<S, W>(s, groups[r], b);
            let block = W::block(s, groups[r], b);
            for quad in 0..COLUMN_BLOCK / 4 {
                let values = W::quad(s, &block, quad);
                for i in 0..4 {
                    columns[quad * 4 + i][r] = values[i];
                }
            }
        }
        let mut row = 0;
        while row < rows {
            let (x, totals) = (&x[row * k..], &mut totals[row..]);
            row += match rows - row {
                8.. if S::LARGE_TILES => exact_tile::<S, 8>(s, &columns, x, k, b, totals),
                4.. if S::LARGE_TILES => exact_tile::<S, 4>(s, &columns, x, k, b, totals),
                2.. if !S::LARGE_TILES => exact_tile::<S, 2>(s, &columns, x, k, b, totals),
                _ => exact_tile::<S, 1>(s, &columns, x, k, b, totals),
            };
        }
    }
}

/// Multiplies one block of dequantized columns of the row groups by `T` rows of x, and returns `T`.
#[inline(always)]
fn exact_tile<S: Isa, const T: usize>(
    s: S,
    columns: &[[S::F; TASK_GROUPS]; COLUMN_BLOCK],
    x: &[f32],
    k: usize,
    block: usize,
    totals: &mut [[S::F; TASK_GROUPS]],
) -> usize {
    let mut rows = [&[0.0; COLUMN_BLOCK]; T];
    for t in 0..T {
        rows[t] = &x[t * k..][..k].as_chunks::<COLUMN_BLOCK>().0[block];
    }
    let mut sums = [[s.zero(); TASK_GROUPS]; T];
    for (i, weights) in columns.iter().enumerate() {
        for t in 0..T {
            let x = s.splat(rows[t][i]);
            for r in 0..TASK_GROUPS {
                sums[t][r] = s.fma(weights[r], x, sums[t][r]);
            }
        }
    }
    for (total, sum) in totals[..T].iter_mut().zip(sums) {
        for r in 0..TASK_GROUPS {
            total[r] = s.add(total[r], sum[r]);
        }
    }
    T
}

/// Products with int8 activations. The kernel computes integer dot products and scales them block by block.
pub(crate) struct Fast<W>(Of<W>);

impl<W: Quantised> HostKernel for Fast<W> {
    const KERNEL: Kernel = product(W::TYPE, Activations::Int8);

    fn grid(constants: &[u32]) -> [u32; 3] {
        matmul::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [rows, word, n, k, accumulate, stride] = array(call.constants);
        let [n, k, stride] = [n, k, stride].map(|count| count as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, weights, x) = unsafe { (call.read::<u32>(0), call.read::<u8>(1), call.read::<i32>(2)) };
        let x = &x[..count(params, word, rows) * (row_bytes(k) / 4)];
        let tasks = Tasks { weights, n, k };
        for task in groups.start as usize..groups.end as usize {
            let column = task * TASK_GROUPS * GROUP_ROWS;
            let out = Output { call, n, stride, accumulate: accumulate != 0, column };
            // SAFETY: each group writes its own columns.
            unsafe { fast::<S, W>(s, tasks.open::<W>(task), x, k, &out) };
        }
    }
}

/// A row of int8 activations as 32-bit words. Each word holds four quants, the bits of a scale, or a sum.
#[derive(Clone, Copy)]
struct Int8Row<'a> {
    quads: &'a [[i32; 8]],
    scales: &'a [i32],
    sums: &'a [[i32; 2]],
}

impl<'a> Int8Row<'a> {
    #[inline(always)]
    fn new(row: &'a [i32], k: usize) -> Self {
        let (scales, sums) = (scales_offset(k) / 4, sums_offset(k) / 4);
        let blocks = k / COLUMN_BLOCK;
        Self {
            quads: row[..k / 4].as_chunks().0,
            scales: &row[scales..scales + blocks],
            sums: row[sums..sums + blocks * 2].as_chunks().0,
        }
    }
}

/// Multiplies the row groups of a task by all rows of x.
///
/// # Safety
/// The requirements of [`Output::put`] apply.
#[inline(always)]
unsafe fn fast<S: Isa, W: Quantised>(
    s: S,
    groups: [W::Group<'_>; TASK_GROUPS],
    x: &[i32],
    k: usize,
    out: &Output<'_>,
) {
    let stride = row_bytes(k) / 4;
    if x.len() == stride {
        let (row, mut totals) = (Int8Row::new(x, k), [s.zero(); TASK_GROUPS]);
        for b in 0..k / COLUMN_BLOCK {
            fast_block::<S, W>(s, &fast_quants::<S, W>(s, groups, b), &row, b, &mut totals);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { out.put(s, 0, &totals) };
        return;
    }
    for (tile, x) in x.chunks(TILE * stride).enumerate() {
        let mut totals = [[s.zero(); TASK_GROUPS]; TILE];
        let mut rows = [Int8Row { quads: &[], scales: &[], sums: &[] }; TILE];
        let count = x.len() / stride;
        for (row, x) in rows.iter_mut().zip(x.chunks_exact(stride)) {
            *row = Int8Row::new(x, k);
        }
        for b in 0..k / COLUMN_BLOCK {
            let quants = fast_quants::<S, W>(s, groups, b);
            for (row, totals) in rows[..count].iter().zip(&mut totals) {
                fast_block::<S, W>(s, &quants, row, b, totals);
            }
        }
        for (row, sums) in totals[..count].iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { out.put(s, tile * TILE + row, sums) };
        }
    }
}

/// Unpacks one block of columns of the row groups.
#[inline(always)]
fn fast_quants<S: Isa, W: Quantised>(
    s: S,
    groups: [W::Group<'_>; TASK_GROUPS],
    block: usize,
) -> [Quants<S>; TASK_GROUPS] {
    for group in groups {
        prefetch::<S, W>(s, group, block);
    }
    let [first, second] = groups;
    [W::quants(s, first, block), W::quants(s, second, block)]
}

/// Multiplies one block of columns of the row groups by a row of x.
#[inline(always)]
fn fast_block<S: Isa, W: Quantised>(
    s: S,
    quants: &[Quants<S>; TASK_GROUPS],
    row: &Int8Row<'_>,
    block: usize,
    totals: &mut [S::F; TASK_GROUPS],
) {
    let (x, sums) = (&row.quads[block], row.sums[block]);
    let scale = f32::from_bits(row.scales[block] as u32);
    for r in 0..TASK_GROUPS {
        if W::HALVES {
            for half in 0..2 {
                let x = &x.as_chunks::<4>().0[half];
                totals[r] = fast_part::<S, W, 4>(s, &quants[r], half, x, scale, sums[half], totals[r]);
            }
        } else {
            totals[r] = fast_part::<S, W, 8>(s, &quants[r], 0, x, scale, sums[0] + sums[1], totals[r]);
        }
    }
}

/// Adds the product of part `part` of a block of weights, which has `N` quads and one scale, and of the same
/// part of a row of x to `total`, and returns the result.
#[inline(always)]
fn fast_part<S: Isa, W: Quantised, const N: usize>(
    s: S,
    quants: &Quants<S>,
    part: usize,
    x: &[i32; N],
    scale: f32,
    sum: i32,
    total: S::F,
) -> S::F {
    let offset = if W::BITS == 8 { W::OFFSET - 128 + S::WIDE_OFFSET } else { W::OFFSET };
    let dot = s.dot(W::BITS, &quants.quads.as_chunks::<N>().0[part], x, s.splat_i(-offset * sum));
    let total = s.fma(s.to_f32(dot), s.mul(quants.scales[part], s.splat(scale)), total);
    if W::MINIMA { s.fma(quants.minima[part], s.splat(-scale * sum as f32), total) } else { total }
}
