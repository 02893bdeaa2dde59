//! Kernels that process rows of logits: softmax, arg max, top k.

use super::HostKernel;
use super::isa::Isa;
use super::launch::{count, row_mut};
use crate::add;
use crate::arg_max::beats;
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::ops::Range;

/// Number of consecutive values whose sum is computed separately and then added to the total of the row.
/// Short partial sums limit rounding errors.
const SUM_BLOCK: usize = 1024;

/// Number of consecutive values that top k skips at once if none of them exceeds the smallest result so far.
const SKIP: usize = 64;

/// Returns the largest value in `row`, ignoring NaN. Returns −∞ if `row` has no other values.
#[inline(always)]
fn largest_number<S: Isa>(s: S, row: &[f32]) -> f32 {
    let (quads, rest) = row.as_chunks::<64>();
    let mut best = [s.splat(f32::NEG_INFINITY); 4];
    for quad in quads {
        let lanes = quad.as_chunks::<16>().0;
        for i in 0..4 {
            best[i] = s.max(s.load(&lanes[i]), best[i]); // Returns the second argument if the first is NaN.
        }
    }
    let best = s.largest(s.max(s.max(best[0], best[1]), s.max(best[2], best[3])));
    rest.iter().fold(best, |best, x| if *x > best { *x } else { best })
}

/// Writes exp(x − max) to `out`. Returns the sums of these values per lane.
#[inline(always)]
fn exponentials<S: Isa>(s: S, x: &[f32], max: f32, out: &mut [f32]) -> S::F {
    // `exp` of −∞, subtracted so that −∞ yields zero.
    let least = s.exp(s.splat(f32::NEG_INFINITY));
    let max = s.splat(max);
    let (x, x_rest) = x.as_chunks::<16>();
    let (out, out_rest) = out.as_chunks_mut::<16>();
    let mut sum = s.zero();
    for (out, x) in out.iter_mut().zip(x) {
        let e = s.sub(s.exp(s.sub(s.load(x), max)), least);
        s.store(e, out);
        sum = s.add(sum, e);
    }
    let mut lanes = [f32::NEG_INFINITY; 16];
    lanes[..x_rest.len()].copy_from_slice(x_rest);
    let e = s.sub(s.exp(s.sub(s.load(&lanes), max)), least);
    s.store(e, &mut lanes);
    out_rest.copy_from_slice(&lanes[..out_rest.len()]);
    s.add(sum, e)
}

/// Softmax of rows.
pub(crate) struct Softmax;

impl HostKernel for Softmax {
    const KERNEL: Kernel = Kernel::Softmax;

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
            let out = unsafe { row_mut(call, 2, row, width) };
            // `largest_number` ignores NaN, but a NaN makes the sum NaN. If a row has no numbers, any maximum
            // works.
            let max = largest_number(s, x).max(f32::MIN);
            let mut sums = s.zero();
            for (x, out) in x.chunks(SUM_BLOCK).zip(out.chunks_mut(SUM_BLOCK)) {
                sums = s.add(sums, exponentials(s, x, max, out));
            }
            let sum = s.sum(sums);
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            out.iter_mut().for_each(|p| *p *= scale);
        }
    }
}

/// Finds the position of each row's largest value.
pub(crate) struct ArgMax;

impl HostKernel for ArgMax {
    const KERNEL: Kernel = Kernel::ArgMax;

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
            let largest = largest_number(s, x);
            // Finds nothing if all values are NaN.
            let index = x.iter().position(|x| *x == largest).unwrap_or(0);
            // SAFETY: each group writes its own word.
            unsafe { call.write::<u32>(2, row..row + 1)[0] = index as u32 };
        }
    }
}

/// The largest values so far, in descending order, and their positions.
struct Best<'a> {
    values: &'a mut [f32],
    indices: &'a mut [u32],
}

impl Best<'_> {
    /// Inserts `value` in order among the first `count` values, and drops the smallest value.
    #[inline(always)]
    fn insert(&mut self, count: usize, value: f32, index: usize) {
        let mut at = count;
        while at > 0 && beats(value, self.values[at - 1]) {
            self.values[at] = self.values[at - 1];
            self.indices[at] = self.indices[at - 1];
            at -= 1;
        }
        self.values[at] = value;
        self.indices[at] = index as u32;
    }
}

/// Finds the k largest values of each row.
pub(crate) struct TopK;

impl HostKernel for TopK {
    const KERNEL: Kernel = Kernel::TopK;

    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, word, width, k] = call.constants else { return };
        let (width, k) = (width as usize, k as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let rows = count(params, word, rows);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < rows) {
            let x = &x[row * width..][..width];
            // SAFETY: each group writes its own rows.
            let (values, indices) =
                unsafe { (row_mut(call, 2, row, k), call.write::<u32>(3, row * k..(row + 1) * k)) };
            top_of_row(s, x, &mut Best { values, indices });
        }
    }
}

/// Fills `best` with the largest values of row `x`. `best` has space for 1 to `x.len()` values.
#[inline(always)]
fn top_of_row<S: Isa>(s: S, x: &[f32], best: &mut Best<'_>) {
    let last = best.values.len() - 1;
    for (i, value) in x[..=last].iter().enumerate() {
        best.insert(i, *value, i);
    }
    for (block, values) in x[last + 1..].chunks(SKIP).enumerate() {
        if !best.values[last].is_nan() && largest_number(s, values) <= best.values[last] {
            continue;
        }
        for (i, value) in values.iter().enumerate() {
            if beats(*value, best.values[last]) {
                best.insert(last, *value, last + 1 + block * SKIP + i);
            }
        }
    }
}
