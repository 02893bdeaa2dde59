//! Kernels that process rows of logits: arg max, top k.

use super::isa::Isa;
use super::row::{Row, RowWise};
use crate::arg_max::beats;
use crate::kernel::Kernel;

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

/// Finds the position of each row's largest value.
pub(crate) struct ArgMax;

// SAFETY: `row` reads binding 1 as floats, and writes its word of binding 2 once.
unsafe impl RowWise for ArgMax {
    const KERNEL: Kernel = Kernel::ArgMax;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width] = row.constants();
        let x = row.read(1, width as usize);
        let largest = largest_number(s, x);
        // Finds nothing if all values are NaN.
        let index = x.iter().position(|x| *x == largest).unwrap_or(0);
        row.write_as::<u32>(2, 1)[0] = index as u32;
    }
}

/// The largest values so far, in descending order, and their positions.
pub(super) struct Best<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) indices: &'a mut [u32],
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

// SAFETY: `row` reads binding 1 as floats, and writes its rows of bindings 2 and 3 once.
unsafe impl RowWise for TopK {
    const KERNEL: Kernel = Kernel::TopK;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, k] = row.constants();
        let mut best = Best { values: row.write(2, k as usize), indices: row.write_as(3, k as usize) };
        top_of_row(s, row.read(1, width as usize), &mut best);
    }
}

/// Fills `best` with the largest values of row `x`. `best` has space for 1 to `x.len()` values.
#[inline(always)]
pub(super) fn top_of_row<S: Isa>(s: S, x: &[f32], best: &mut Best<'_>) {
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
