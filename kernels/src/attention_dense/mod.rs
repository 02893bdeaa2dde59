//! Attention over dense keys and values, out = Σ softmax(score) v. Supports the masks and the score cap that
//! common models need.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | q: values of the kernel's type, `[batch, heads, m, d]` |
//! | 1 | k: values of the same type, `[batch, kv heads, n, d]` |
//! | 2 | v: values of the same type, with the shape of k |
//! | 3 | out: f32 `[batch, heads, m, d]`, written |
//!
//! The constants are:
//! - batch, heads, kv heads, m, n, d;
//! - the strides of batch, head and row for q, then for k, v and out, in values;
//! - scale and cap (the bits of an f32), causal, window, prefix.
//!
//! The values of a row are contiguous. All other dimensions follow the strides, so the layout `[batch, m,
//! heads, d]` also works. Rows of out must not overlap. Kernels read 16-bit types in 32-bit words, so the
//! size of these bindings is a multiple of four bytes.
//!
//! The number of heads is a multiple of the number of kv heads. With g = heads / kv heads, the g heads from h
//! · g to h · g + g − 1 share kv head h. Row i is at position p = i + n − m, so the last row is at the last
//! position. Row i attends to position j
//! - if j is below `prefix`,
//! - or if j passes both masks: j ≤ p unless `causal` is zero, and |p − j| < window unless `window` is zero.
//!
//! score = scale · q·k, or cap · tanh(scale · q·k / cap) if the cap is not zero. The kernel computes a
//! streaming softmax over [`STEP`] positions at a time (Milakov and Gimelshein, 2018), so it never stores all
//! scores of a row. If a row attends to no position, its result is zero. Masked positions never affect a
//! result, even if they contain NaN. A score of −∞ has no weight, and a row with only such scores becomes
//! zero. A row with a score of +∞ or NaN becomes NaN.
//!
//! A work group computes [`QUERIES`] queries of one kv head. The queries are ordered by row, then by head.
//! There are at most 2²⁹ rows, 2²⁹ positions, and 2³¹ − 1 work groups.

use crate::abi::{IMPOSSIBLE, abi_for, array, reach, reach_apart, values};
use crate::cases::{Build, Case, Content, MANY, Random, Stored, row_starts};
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};
use std::ops::Range;

/// Number of queries per work group.
pub const QUERIES: u32 = 16;

/// Number of positions that the streaming softmax processes before it rescales its running sum.
pub const STEP: usize = 64;

/// Maximum number of rows and maximum number of positions.
const MAX_LENGTH: u32 = 1 << 29;

/// Returns the binary interface for values of type `element`.
pub fn abi(element: ElementType) -> &'static EntryAbi {
    abi_for!(
        ElementType,
        element,
        "attention_dense",
        &[Access::Read, Access::Read, Access::Read, Access::Write],
        23,
        extents
    )
}

fn extents(element: ElementType, constants: &[u32], out: &mut [u64]) {
    let [batch, heads, kv_heads, m, n, d, strides @ .., _, _, _, _, _] = array::<23>(constants);
    if [batch, heads, m, d].contains(&0) {
        return out.fill(0);
    }
    if m > MAX_LENGTH || n > MAX_LENGTH || groups(constants).is_none() {
        return out.fill(IMPOSSIBLE);
    }
    let [q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, to_batch, to_head, to_row] =
        strides;
    out.copy_from_slice(&[
        values(element, reach(d, &[(batch, q_batch), (heads, q_head), (m, q_row)])),
        values(element, reach(d, &[(batch, k_batch), (kv_heads, k_head), (n, k_row)])),
        values(element, reach(d, &[(batch, v_batch), (kv_heads, v_head), (n, v_row)])),
        values(ElementType::F32, reach_apart(d, [(batch, to_batch), (heads, to_head), (m, to_row)])),
    ]);
}

/// Returns the number of work groups. Returns `None` if the number of heads is not a multiple of the number
/// of kv heads, or if the number of work groups exceeds the limit of a launch.
fn groups(constants: &[u32]) -> Option<u32> {
    let [batch, heads, kv_heads, m, _, d, ..] = array::<23>(constants);
    if [batch, heads, m, d].contains(&0) {
        return Some(0);
    }
    let sharing = heads.checked_div(kv_heads).filter(|sharing| sharing * kv_heads == heads)?;
    let tiles = m.checked_mul(sharing)?.div_ceil(QUERIES);
    tiles.checked_mul(kv_heads)?.checked_mul(batch).filter(|groups| *groups <= i32::MAX as u32)
}

/// Returns a grid with one work group per batch entry, kv head and query tile. All work groups are in the
/// first dimension, which has the largest limit on every device.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [groups(constants).unwrap_or(u32::MAX), 1, 1]
}

/// Mask that determines the positions to which each row attends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    pub rows: usize,
    pub positions: usize,
    pub causal: bool,
    /// Width of the window in positions, or zero for no window.
    pub window: usize,
    pub prefix: usize,
}

impl Mask {
    /// Returns the positions that the causal mask and the window allow for `row`, regardless of the prefix.
    #[inline(always)]
    pub fn span(&self, row: usize) -> Range<usize> {
        // A window beyond the maximum number of positions has no effect.
        let window = if self.window == 0 { 1 << 40 } else { self.window as i64 };
        let at = row as i64 + self.positions as i64 - self.rows as i64;
        let end = if self.causal { at + 1 } else { at + window };
        let within = |position: i64| position.clamp(0, self.positions as i64) as usize;
        within(at - window + 1)..within(end)
    }

    /// Returns whether `row` attends to `position`.
    #[inline(always)]
    pub fn sees(&self, row: usize, position: usize) -> bool {
        position < self.prefix || self.span(row).contains(&position)
    }
}

/// Parameters of a case.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    /// Number of kv heads, and number of heads that share each of them.
    heads: [usize; 2],
    mask: Mask,
    d: usize,
    scale: f32,
    cap: f32,
    /// Whether heads are the inner dimension: `[batch, rows, heads, d]` instead of `[batch, heads, rows, d]`.
    heads_inside: bool,
    /// Number of unused values after each row of q, k, v and out.
    gap: usize,
}

const fn rows(rows: usize, positions: usize) -> Mask {
    Mask { rows, positions, causal: false, window: 0, prefix: 0 }
}

const fn causal(rows: usize, positions: usize, window: usize, prefix: usize) -> Mask {
    Mask { rows, positions, causal: true, window, prefix }
}

pub(crate) struct AttentionDense(pub ElementType);

impl Spec for AttentionDense {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi(self.0)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let plain = |heads, mask, d: usize| Shape {
            batch: 1,
            heads,
            mask,
            d,
            scale: 1.0 / (d.max(1) as f32).sqrt(),
            cap: 0.0,
            heads_inside: false,
            gap: 0,
        };
        let shapes = [
            plain([1, 1], rows(1, 1), 1),
            Shape { batch: 2, ..plain([2, 4], causal(1, 130, 0, 0), 64) },
            Shape { heads_inside: true, ..plain([2, 2], causal(37, 37, 0, 0), 20) },
            Shape { gap: 3, ..plain([3, 1], causal(19, 150, 20, 3), 33) },
            Shape { cap: 5.0, scale: 1.5, ..plain([1, 3], rows(7, 101), 160) },
            // The first rows precede the first position. Without a prefix they attend to nothing.
            plain([1, 2], causal(21, 9, 0, 0), 16),
            Shape { batch: 2, gap: 1, ..plain([1, 5], causal(21, 9, 4, 2), 7) },
            // The first rows attend to no position, and the windows of the other rows overlap only in part.
            plain([1, 1], Mask { window: 9, ..rows(200, 70) }, 48),
            // Scores are small relative to the cap.
            Shape { cap: 1e4, scale: 1.5, ..plain([1, 3], rows(7, 101), 160) },
            Shape { cap: 1e8, scale: 1.5, ..plain([1, 3], rows(7, 101), 160) },
            plain([2, 1], rows(3, 0), 5),
            plain([2, 1], rows(0, 3), 5),
        ];
        let cases = shapes.into_iter().map(|shape| case(self.0, random, shape));
        cases
            .chain(
                [(0.0, 2.0), (0.0, f32::NAN), (0.0, f32::INFINITY), (1000.0, 2.0)].map(|(cap, special)| {
                    edges(self.0, Shape { cap, ..plain([1, 1], EDGE_MASK, 16) }, special)
                }),
            )
            .collect()
    }

    /// Returns a case of random shape. A few of these cases have more work groups than some devices allow in
    /// one dimension.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let mut few = |bound: usize| random.below(bound);
        let many = few(64) == 0;
        let mask = Mask {
            rows: few(40),
            positions: few(200),
            causal: few(2) == 1,
            window: few(2) * (1 + few(80)),
            prefix: few(2) * few(100),
        };
        let shape = Shape {
            batch: 1 + few(2),
            heads: [1 + few(3), 1 + few(5)],
            mask,
            d: 1 + few(150),
            scale: (1 + few(8)) as f32 / 16.0,
            cap: few(2) as f32 * (1 + few(30)) as f32,
            heads_inside: few(2) == 1,
            gap: few(5),
        };
        let many_small =
            Shape { batch: MANY, heads: [1, 1], mask: Mask { rows: 1, positions: 2, ..mask }, d: 1, ..shape };
        case(self.0, random, if many { many_small } else { shape })
    }
}

/// Returns the strides of batch, head and row of `[batch, heads, rows, d]`.
fn strides(shape: &Shape, heads: usize, rows: usize) -> [usize; 3] {
    let row = shape.d + shape.gap;
    let [head, row] = if shape.heads_inside { [row, heads * row] } else { [rows * row, row] };
    [heads * rows * (shape.d + shape.gap) + shape.gap, head, row]
}

fn case(element: ElementType, random: &mut Random, shape: Shape) -> Case {
    let Shape { mask, d, .. } = shape;
    let (m, n) = (mask.rows, mask.positions);
    let [queries, keys] = places(&shape);
    let q = Stored::new(element, &random.rows(d, &queries, 2.0));
    let [k, v] = [0, 1].map(|_| {
        // Positions that no row attends to are NaN.
        let mut values = random.rows(d, &keys, 1.0);
        let starts = row_starts(&keys).into_iter().enumerate();
        let unseen = starts.filter(|(i, _)| !(0..m).any(|row| mask.sees(row, i % n)));
        unseen.for_each(|(_, start)| values[start..start + d].fill(f32::NAN));
        Stored::new(element, &values)
    });
    let (build, expected) = build(element, shape, [q, k, v]);
    build.poison(expected.len() * 4).expect_f32(3, expected)
}

/// Mask for [`edges`]. The first row attends to all positions before [`SPECIAL`]. The other rows also attend
/// to [`SPECIAL`].
const EDGE_MASK: Mask = causal(5, SPECIAL + 4, 0, 0);

/// Position in the second step of the softmax, so that the running sum must be rescaled.
const SPECIAL: usize = STEP;

/// Builds a case in which the products q·k are infinite or NaN, except at position [`SPECIAL`]. The value
/// vector of that position starts with `special`. Each expected output is zero, NaN, or the value vector of
/// one position.
fn edges(element: ElementType, shape: Shape, special: f32) -> Case {
    let Shape { mask, d, .. } = shape;
    let rows_of = |firsts: Vec<f32>, rest: f32| {
        let row = |first| std::iter::once(first).chain(std::iter::repeat_n(rest, d - 1));
        Stored::new(element, &firsts.into_iter().flat_map(row).collect::<Vec<_>>())
    };
    let positions = |special, other| {
        (0..mask.positions).map(|at| if at == SPECIAL { special } else { other }).collect::<Vec<_>>()
    };
    let q = rows_of(vec![1.0, 1.0, -1.0, f32::NAN, f32::INFINITY], 0.0);
    let k = rows_of(positions(1.0, f32::NEG_INFINITY), 1.0);
    // With a cap, some rows are the mean of all other positions. Zero is the only mean that every device
    // computes exactly.
    let v = rows_of(positions(special, if shape.cap == 0.0 { 3.0 } else { 0.0 }), 0.0);
    let (build, expected) = build(element, shape, [q, k, v]);
    let expected: Vec<_> = expected.into_iter().map(|value| value.map(|value| value as f32)).collect();
    build.floats(&vec![7.0; expected.len()]).expect(3, Content::Same(expected)).done()
}

/// Returns the (count, stride) of each dimension along which rows repeat: first for q and out, then for k and
/// v.
fn places(shape: &Shape) -> [[(usize, usize); 3]; 2] {
    let Shape { batch, heads: [kv_heads, sharing], mask, .. } = *shape;
    [(kv_heads * sharing, mask.rows), (kv_heads, mask.positions)].map(|(heads, rows)| {
        let strides = strides(shape, heads, rows);
        [(batch, strides[0]), (heads, strides[1]), (rows, strides[2])]
    })
}

/// Builds a case without its output binding, and returns it with the expected output.
fn build(element: ElementType, shape: Shape, [q, k, v]: [Stored; 3]) -> (Build, Vec<Option<f64>>) {
    let Shape { batch, heads: [kv_heads, sharing], mask, d, scale, cap, .. } = shape;
    let (heads, m, n) = (kv_heads * sharing, mask.rows, mask.positions);
    let [queries, keys] = places(&shape);
    let [of_queries, of_keys] = [queries, keys].map(|places| places.map(|(_, stride)| stride));
    let out_values = q.values.len();
    let mut expected = vec![None; out_values];
    for (i, start) in row_starts(&queries).into_iter().enumerate() {
        let (sequence, head, row) = (i / m / heads, i / m % heads, i % m);
        let seen: Vec<usize> = (0..n).filter(|position| mask.sees(row, *position)).collect();
        let at = |position| sequence * of_keys[0] + head / sharing * of_keys[1] + position * of_keys[2];
        let query = &q.values[start..start + d];
        let score = |position: &usize| {
            let dot: f64 = query.iter().zip(&k.values[at(*position)..]).map(|(q, k)| q * k).sum();
            let (score, cap) = (dot * f64::from(scale), f64::from(cap));
            if cap == 0.0 { score } else { cap * (score / cap).tanh() }
        };
        let scores: Vec<f64> = seen.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weight = |score: &f64| if *score == f64::NEG_INFINITY { 0.0 } else { (score - largest).exp() };
        let weights: Vec<f64> = scores.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        for dim in 0..d {
            let sum: f64 = seen.iter().zip(&weights).map(|(p, w)| w * v.values[at(*p) + dim]).sum();
            let none = largest == f64::NEG_INFINITY && !total.is_nan();
            expected[start + dim] = Some(if none { 0.0 } else { sum / total });
        }
    }
    let floats = [scale, cap].map(|value| value.to_bits() as usize);
    let sizes = [batch, heads, kv_heads, m, n, d];
    let rules = [usize::from(mask.causal), mask.window, mask.prefix];
    let constants = [&sizes[..], &of_queries, &of_keys, &of_keys, &of_queries, &floats, &rules].concat();
    let label = format!(
        "{batch} of {heads} heads on {kv_heads} of {d}, rows {} apart, scale {scale}, cap {cap}, {mask:?}",
        of_queries[2]
    );
    let build = Build::new(Kernel::AttentionDense(element), label, &constants);
    (build.bytes(q.bytes).bytes(k.bytes).bytes(v.bytes), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(mask: Mask, row: usize) -> Vec<usize> {
        (0..mask.positions).filter(|position| mask.sees(row, *position)).collect()
    }

    #[test]
    fn masks_match_their_definition() {
        assert_eq!(seen(rows(2, 3), 0), [0, 1, 2]);
        assert_eq!(seen(causal(2, 4, 0, 0), 0), [0, 1, 2]);
        assert_eq!(seen(causal(2, 4, 0, 0), 1), [0, 1, 2, 3]);
        assert_eq!(seen(causal(1, 9, 3, 0), 0), [6, 7, 8]);
        assert_eq!(seen(causal(1, 9, 3, 2), 0), [0, 1, 6, 7, 8]);
        assert_eq!(seen(Mask { window: 2, ..rows(5, 5) }, 2), [1, 2, 3]);
        // Before the first position.
        assert!(seen(causal(3, 2, 0, 0), 0).is_empty());
        assert_eq!(seen(causal(3, 2, 0, 1), 0), [0]);
        assert_eq!(seen(Mask { window: 3, ..rows(4, 2) }, 0), [0]);
        // After the last position, and with a window larger than the sequence.
        assert_eq!(seen(Mask { window: u32::MAX as usize, ..rows(4, 2) }, 3), [0, 1]);
    }

    #[test]
    fn rejects_heads_that_cannot_share() {
        let constants = |heads: u32, kv_heads: u32, rest: [u32; 4]| {
            let mut constants = vec![2, heads, kv_heads, rest[0], rest[1], rest[2]];
            constants.extend([rest[3]; 12]);
            constants.extend([0; 5]);
            constants
        };
        let extents_of = |constants: &[u32]| {
            let mut out = [0; 4];
            extents(ElementType::F16, constants, &mut out);
            out
        };
        assert_eq!(extents_of(&constants(3, 2, [1, 1, 4, 4])), [IMPOSSIBLE; 4]);
        assert_eq!(extents_of(&constants(3, 0, [1, 1, 4, 4])), [IMPOSSIBLE; 4]);
        assert_eq!(extents_of(&constants(2, 2, [MAX_LENGTH + 1, 1, 4, 4])), [IMPOSSIBLE; 4]);
        assert_eq!(extents_of(&constants(2, 2, [0, 1, 4, 4])), [0; 4]);
        // Batch and head have a stride of four values. Written rows would overlap, which is invalid. Read
        // rows may overlap.
        assert_eq!(extents_of(&constants(2, 1, [1, 3, 4, 4])), [24, 32, 32, IMPOSSIBLE]);
    }
}
