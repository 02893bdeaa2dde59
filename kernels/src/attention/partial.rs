//! First launch of split attention, for rows of different sequences, or few rows over a long KV cache. Several
//! groups may share the positions of one row.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | q, in the same layout as for [attention](super) |
//! | 2 | key cache |
//! | 3 | value cache |
//! | 4 | partials, written |
//!
//! The constants are those of [attention](super), followed by the number of splits and the index of the
//! parameter word that holds the number of rows: [`ROWS`], or [`DECODE_ROWS`] beside attention of prompts. At
//! most as many rows as sequences are decode rows.
//!
//! The cache blocks with positions to which a row attends are divided into `splits` splits. All splits
//! have the same number of blocks, except that the last splits may be shorter or empty. The grid is splits
//! × kv heads × rows. A group processes all heads that share its kv head.
//!
//! Partials are f32 and have two parts. The first part is `[rows][heads][splits][head dimension]`. For each
//! split, it holds the mean of the values, weighted by the softmax over the split. The second part is
//! `[rows][heads][splits][2]`. For each split, it holds the largest scaled score, and the sum of e^(score −
//! largest score). The sum is zero for an empty split, and for all splits of a row whose sequence, position
//! or block is invalid. If the sum is zero, no kernel reads the other values of the split.
//! [`merge`](super::merge) combines the splits.

use super::{LONG, Scene, random_scene, scene};
use crate::abi::{IMPOSSIBLE, abi_for, array, words};
use crate::cases::{Build, Case, Content, Random};
use crate::kernel::{Accuracy, Kernel, KvType, Spec};
use crate::layout::Layout;
use crate::params::{BLOCK_TOKENS, DECODE_ROWS, ROWS};
use ragtag_hal::{Access, EntryAbi};
use std::ops::Range;

/// Maximum number of splits.
pub const MAX_SPLITS: u32 = 64;

pub(super) const BINDINGS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];

pub(super) fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let [rows, _, _, _, heads, _, head_dim, .., splits, _] = array::<14>(constants);
    super::extents(kv_type, &constants[..12], out);
    out[4] = partials_bytes(rows, heads, head_dim, splits);
}

/// Returns the number of bytes in the partials, or [`IMPOSSIBLE`] if `splits` is zero.
pub(super) fn partials_bytes(rows: u32, heads: u32, head_dim: u32, splits: u32) -> u64 {
    match head_dim.checked_add(2) {
        Some(values) if splits > 0 => words(&[rows, heads, splits, values]),
        _ => IMPOSSIBLE,
    }
}

/// Returns a grid of splits × kv heads × rows.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [rows, sequences, .., word] = array::<14>(&constants[..14]);
    [constants[12], constants[5], if word == DECODE_ROWS { rows.min(sequences) } else { rows }]
}

/// Returns the positions in split `split` of a row that attends to the positions `visible`.
pub(crate) fn run(visible: Range<usize>, splits: usize, split: usize) -> Range<usize> {
    let first = visible.start / BLOCK_TOKENS;
    let positions = (visible.end.div_ceil(BLOCK_TOKENS) - first).div_ceil(splits) * BLOCK_TOKENS;
    let start = first * BLOCK_TOKENS + split * positions;
    start.clamp(visible.start, visible.end)..(start + positions).min(visible.end)
}

pub(crate) struct AttentionPartial(pub KvType);

impl Spec for AttentionPartial {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(KvType, self.0, "attention_partial", BINDINGS, 14, extents)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        // Capacity, (first position, rows) of each sequence, heads, kv heads, head dimension, splits.
        for (capacity, starts, [heads, kv_heads, head_dim], splits) in [
            (1, vec![(0, 1)], [1, 1, 64], 1),
            (1, vec![(200, 1)], [8, 1, 64], 3),
            (8, vec![(0, 2), (37, 1), (160, 3)], [4, 2, 64], 5),
            (4, vec![(15, 1), (16, 1), (63, 1), (64, 1)], [12, 1, 48], 2),
            (2, vec![(190, 2)], [8, 2, 128], 64),
            (2, vec![(70, 2)], [2, 1, 20], 2),
            (3, vec![(100, 2)], [20, 2, 300], 2),
            (3, vec![(100, 2)], [10, 1, 320], 2),
            (3, vec![(100, 2)], [16, 1, 576], 2),
            (2, vec![(60, 2)], [128, 1, 96], 3),
        ] {
            if !self.0.takes(head_dim as u32) {
                continue;
            }
            let scene = scene(random, self.0, (capacity, heads, kv_heads, head_dim), &starts);
            out.push(case(Kernel::AttentionPartial(self.0), &scene, splits));
        }
        for seen in LONG {
            let scene = scene(random, self.0, (3, 2, 1, 64), &[(seen - 3, 3)]);
            out.push(case(Kernel::AttentionPartial(self.0), &scene, 3));
        }
        // A row each of many sequences of different lengths.
        for (splits, window) in [(1, super::NO_WINDOW), (2, 50)] {
            let starts: Vec<_> = (0..70).map(|i| (i * 37 % 190, 1)).collect();
            let mut scene = scene(random, self.0, (72, 6, 1, 64), &starts);
            scene.limit(window, 0.0);
            out.push(case(Kernel::AttentionPartial(self.0), &scene, splits));
        }
        let mut mixed = scene(random, self.0, (40, 4, 2, 64), &[(200, 1), (0, 1), (77, 1), (70, 33)]);
        mixed.skip(3);
        out.push(case(Kernel::AttentionPartial(self.0), &mixed, 2));
        out.extend([f32::NAN, f32::INFINITY].map(|value| not_finite(random, self.0, value)));
        for (starts, [heads, kv_heads, head_dim], splits, window, cap) in [
            (vec![(200, 1)], [8, 1, 64], 3, 5, 0.0),
            (vec![(0, 2), (37, 1), (160, 3)], [4, 2, 64], 2, 33, 1.5),
            (vec![(190, 2)], [8, 2, 128], 64, 100, 0.0),
            (vec![(70, 2)], [2, 1, 20], 2, 20, 0.0),
            (vec![(300, 2)], [20, 2, 300], 2, 270, 5.0),
            (vec![(90, 1)], [3, 1, 64], 3, super::NO_WINDOW, 0.8),
            (vec![(200, 1), (31, 2)], [8, 2, 64], 3, super::CHUNKS | 32, 0.0),
            (vec![(190, 2)], [8, 2, 128], 2, super::CHUNKS | 100, 1.5),
            (vec![(70, 2)], [2, 1, 20], 2, super::CHUNKS | 9, 0.0),
        ] {
            if !self.0.takes(head_dim as u32) {
                continue;
            }
            let mut scene = scene(random, self.0, (8, heads, kv_heads, head_dim), &starts);
            scene.limit(window, cap);
            out.push(case(Kernel::AttentionPartial(self.0), &scene, splits));
            scene.poison_before_windows();
            out.push(case(Kernel::AttentionPartial(self.0), &scene, splits));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (capacity, starts, [heads, kv_heads, head_dim]) = random_scene(random, self.0);
        let splits = 1 + random.below(12);
        let mut scene = scene(random, self.0, (capacity, heads, kv_heads, head_dim), &starts);
        scene.limit_randomly(random);
        case(Kernel::AttentionPartial(self.0), &scene, splits)
    }
}

/// Builds a case whose queries contain the non-finite `value`. The means of all splits are NaN, and so is
/// their merged result.
fn not_finite(random: &mut Random, kv_type: KvType, value: f32) -> Case {
    let (heads, head_dim, splits) = (2, 64, 2);
    let mut scene = scene(random, kv_type, (1, heads, 1, head_dim), &[(200, 1)]);
    scene.spoil(0, value);
    let label = format!("queries of {value}, {}", scene.label);
    let constants = [&scene.constants[..], &[splits, ROWS as usize]].concat();
    let build = Build::new(Kernel::AttentionPartial(kv_type), label, &constants);
    // The merge reads a largest score and a sum. The score is not checked here, and the sum may be infinite.
    let sums = (0..heads * splits).flat_map(|_| [None, value.is_nan().then_some(f64::NAN)]);
    let expected: Vec<_> =
        [Some(f64::NAN)].repeat(heads * splits * head_dim).into_iter().chain(sums).collect();
    let build = scene.inputs(build).floats(&vec![7.0; expected.len()]);
    build.expect(4, Content::SomeSame(expected)).done()
}

pub(super) fn case(kernel: Kernel, scene: &Scene, splits: usize) -> Case {
    let word = if scene.decode_rows() > 0 { DECODE_ROWS } else { ROWS };
    let constants = [&scene.constants[..], &[splits, word as usize]].concat();
    let build = Build::new(kernel, format!("{}, {splits} splits", scene.label), &constants);
    let expected = expected(scene, splits);
    let build = scene.inputs(build).poison(expected.len() * 4);
    build.expect(4, Content::SomeF32(expected)).done()
}

/// Returns the expected partials. Where a value is `None`, the case accepts any value, because the merge
/// never reads it.
pub(super) fn expected(scene: &Scene, splits: usize) -> Vec<Option<f64>> {
    let (heads, head_dim) = (scene.heads, scene.head_dim);
    let runs = scene.capacity * heads * splits;
    let (mut means, mut sums) = (vec![None; runs * head_dim], vec![None; runs * 2]);
    let rows = if scene.decode_rows() > 0 { scene.decode_rows() } else { scene.rows() };
    for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
        for split in 0..splits {
            let at = (row * heads + head) * splits + split;
            let run = scene.visible(row).map_or(0..0, |visible| run(visible, splits, split));
            if run.is_empty() {
                sums[at * 2 + 1] = Some(0.0);
                continue;
            }
            let softmax = scene.softmax(row, head, run);
            let mean = softmax.mean.iter().map(|v| Some(*v));
            means[at * head_dim..][..head_dim].iter_mut().zip(mean).for_each(|(to, v)| *to = v);
            (sums[at * 2], sums[at * 2 + 1]) = (Some(softmax.largest), Some(softmax.sum));
        }
    }
    [means, sums].concat()
}
