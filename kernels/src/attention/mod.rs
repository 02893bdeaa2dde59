//! Causal attention over a paged KV cache with block tables.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | q: f32, rows with stride `stride` (in values); each row starts with heads · head dimension query values |
//! | 2 | key cache, in the layout that [`rope_append`](crate::rope_append) writes |
//! | 3 | value cache, in the same layout |
//! | 4 | out: f32 `[rows, heads · head dimension]`, written |
//!
//! The constants are four capacities (rows, sequences, table blocks, logit rows), heads, kv heads, head
//! dimension, cache blocks, scale (the bits of an f32), stride (at least heads · head dimension), window
//! (at least 1, perhaps with the bit [`CHUNKS`]), and cap (the bits of an f32). The number of heads is a multiple of the number of kv
//! heads. With g = heads / kv heads, the g heads from h · g to h · g + g − 1 share kv head h.
//!
//! A row at position p attends to the last `window` positions of 0 … p of its sequence: out = Σ softmax(s)
//! v. The score s is scale · q·k, or cap · tanh(scale · q·k / cap) if the cap is not zero. [`NO_WINDOW`]
//! exceeds every number of positions. The kernel computes a streaming softmax over steps of
//! [`STEP_TOKENS`] positions, so it never stores all scores of a row. The result of a row does not depend
//! on other rows. If the sequence, position or block of a row is invalid, its result is zero. Cache slots to
//! which no row of the sequence attends never affect a result, even if they contain NaN.
//!
//! The kernel skips the first rows, as many as the parameters' word [`DECODE_ROWS`](crate::params::DECODE_ROWS)
//! says.
//!
//! A group computes [`TILE_ROWS`] rows of one kv head. Neighbouring rows of one sequence share each load of
//! keys and values.

pub mod append;
pub mod merge;
pub mod merge_sinks;
pub mod partial;
mod scene;
pub(crate) mod shared;

use crate::abi::{IMPOSSIBLE, abi_for, params, split_capacities, strided, words};
use crate::cases::{Build, Case, Content, Random};
use crate::kernel::{Accuracy, Kernel, KvType, Spec};
use crate::layout::Layout;
use crate::params::BLOCK_TOKENS;
use crate::rope_append::cache_bytes;
use ragtag_hal::{Access, EntryAbi};
use scene::{LONG, Scene, random_scene, scene};

/// Number of rows per group.
pub const TILE_ROWS: u32 = 8;

/// Window of attention to all positions.
pub const NO_WINDOW: u32 = u32::MAX;

/// Bit of a window that is the size of chunks: a row attends to the positions of its own chunk only, which starts at a
/// multiple of the size.
pub const CHUNKS: u32 = 1 << 31;

/// Number of positions that the streaming softmax processes before it rescales its running sum.
pub const STEP_TOKENS: usize = 4 * BLOCK_TOKENS;

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];

/// Returns the binary interface for a cache of type `kv_type`.
pub(crate) fn abi(kv_type: KvType) -> &'static EntryAbi {
    abi_for!(KvType, kv_type, "attention", BINDINGS, 12, extents)
}

fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let ([rows, sequences, table_blocks, logit_rows], others) = split_capacities(constants);
    let [heads, kv_heads, head_dim, cache_blocks, _, stride, window, _] = others;
    let divides = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let width = heads.checked_mul(head_dim).filter(|_| divides && is_window(window));
    let q = width.map_or(IMPOSSIBLE, |width| strided(rows, stride, width));
    let out_bytes = words(&[rows, heads, head_dim]);
    let [keys, values] = cache_bytes(kv_type, cache_blocks, kv_heads, head_dim);
    out.copy_from_slice(&[params(rows, sequences, table_blocks, logit_rows), q, keys, values, out_bytes]);
}

/// Returns whether a window is not empty.
fn is_window(window: u32) -> bool {
    window & !CHUNKS > 0
}

/// Returns the first of the `seen` positions to which a row attends.
#[inline(always)]
pub(crate) fn window_start(seen: usize, window: u32) -> usize {
    let (is_chunked, size) = (window > CHUNKS && window != NO_WINDOW, (window & !CHUNKS) as usize);
    if is_chunked { (seen - 1) / size * size } else { seen.saturating_sub(window as usize) }
}

/// Returns a grid of row tiles × kv heads.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].div_ceil(TILE_ROWS), constants[5], 1]
}

pub(crate) struct Attention(pub KvType);

impl Spec for Attention {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi(self.0)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        // Capacity, (first position, rows) of each sequence, heads, kv heads, head dimension.
        for (capacity, starts, heads, kv_heads, head_dim) in [
            (1, vec![(0, 1)], 1, 1, 64),
            (1, vec![(200, 1)], 8, 1, 64),
            (17, vec![(0, 7), (37, 1), (60, 8)], 4, 2, 64),
            (33, vec![(0, 33)], 3, 3, 32),
            (4, vec![(15, 1), (16, 1), (63, 1), (64, 1)], 12, 1, 48),
            (19, vec![(120, 19)], 6, 2, 128),
            (2, vec![(70, 2)], 2, 1, 20),
            (40, vec![(90, 33)], 4, 4, 96),
            (70, vec![(5, 67)], 2, 2, 80),
            (200, vec![(3, 199)], 2, 1, 128),
            (9, vec![(60, 8)], 2, 1, 144),
            (200, vec![(3, 199)], 2, 1, 256),
            (50, vec![(90, 33), (0, 16)], 12, 2, 192),
            (90, vec![(110, 75), (0, 9)], 4, 2, 32),
            (70, vec![(60, 70)], 3, 1, 16),
            (4, vec![(40, 4)], 2, 1, 320),
            // Latent attention: one kv head for all query heads.
            (4, vec![(40, 4)], 16, 1, 576),
            (3, vec![(70, 3)], 128, 1, 96),
        ] {
            if !self.0.takes(head_dim as u32) {
                continue;
            }
            let scene = scene(random, self.0, (capacity, heads, kv_heads, head_dim), &starts);
            out.push(case(self.0, &scene));
        }
        // Decode rows that split attention computes, before rows of a prompt.
        let mut mixed = scene(random, self.0, (40, 4, 2, 64), &[(200, 1), (0, 1), (77, 1), (70, 33)]);
        mixed.skip(3);
        out.push(case(self.0, &mixed));
        // Three rows at the end of a long sequence.
        out.extend(LONG.map(|seen| case(self.0, &scene(random, self.0, (3, 2, 1, 64), &[(seen - 3, 3)]))));
        let heads = [[2, 1, 64], [2, 1, 20]].into_iter().filter(|heads| self.0.takes(heads[2] as u32));
        out.extend(heads.map(|heads| not_finite(random, self.0, heads)));
        // Capacity, (first position, rows) of each sequence, heads, kv heads, head dimension, window, cap.
        for (capacity, starts, heads, window, cap) in [
            (1, vec![(200, 1)], [8, 1, 64], 5, 0.0),
            (17, vec![(0, 7), (37, 1), (60, 8)], [4, 2, 64], 16, 1.5),
            (70, vec![(130, 67)], [2, 2, 80], 64, 0.0),
            (40, vec![(90, 33), (0, 7)], [4, 4, 96], NO_WINDOW, 2.0),
            (9, vec![(260, 8)], [2, 1, 144], 100, 5.0),
            (33, vec![(0, 33)], [3, 3, 32], 1, 0.0),
            (70, vec![(130, 67)], [2, 2, 80], CHUNKS | 64, 0.0),
            (40, vec![(90, 33), (0, 7)], [4, 2, 128], CHUNKS | 37, 2.0),
            (9, vec![(260, 8)], [2, 1, 144], CHUNKS | 5, 0.0),
            (33, vec![(0, 33)], [3, 3, 32], CHUNKS | 1, 0.0),
        ] {
            if !self.0.takes(heads[2] as u32) {
                continue;
            }
            let mut scene = scene(random, self.0, (capacity, heads[0], heads[1], heads[2]), &starts);
            scene.limit(window, cap);
            out.push(case(self.0, &scene));
            scene.poison_before_windows();
            out.push(case(self.0, &scene));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (capacity, starts, heads) = random_scene(random, self.0);
        let mut scene = scene(random, self.0, (capacity, heads[0], heads[1], heads[2]), &starts);
        scene.limit_randomly(random);
        case(self.0, &scene)
    }
}

/// Builds a case in which the queries of some rows contain NaN or infinities. The results of these rows are
/// NaN.
fn not_finite(random: &mut Random, kv_type: KvType, [heads, kv_heads, head_dim]: [usize; 3]) -> Case {
    let mut scene = scene(random, kv_type, (5, heads, kv_heads, head_dim), &[(70, 1), (30, 3), (0, 1)]);
    scene.spoil(0, f32::NAN);
    scene.spoil(2, f32::INFINITY);
    let expected =
        (0..5 * heads * head_dim).map(|i| [0, 2].contains(&(i / heads / head_dim)).then_some(f64::NAN));
    let label = format!("not finite, {}", scene.label);
    let build = Build::new(Kernel::Attention(kv_type), label, &scene.constants);
    let out = vec![7.0; expected.len()];
    scene.inputs(build).floats(&out).expect(4, Content::SomeSame(expected.collect())).done()
}

fn case(kv_type: KvType, scene: &Scene) -> Case {
    let (capacity, heads, head_dim) = (scene.capacity, scene.heads, scene.head_dim);
    let softmax = |row: usize, head: usize| match scene.visible(row) {
        _ if row < scene.decode_rows() => vec![None; head_dim],
        Some(visible) => scene.softmax(row, head, visible).mean.into_iter().map(Some).collect(),
        None => vec![Some(0.0); head_dim],
    };
    let rows = (0..scene.rows()).flat_map(|row| (0..heads).map(move |head| (row, head)));
    let mut expected: Vec<_> = rows.flat_map(|(row, head)| softmax(row, head)).collect();
    expected.resize(capacity * heads * head_dim, None);
    let build = Build::new(Kernel::Attention(kv_type), scene.label.clone(), &scene.constants);
    scene.inputs(build).poison(expected.len() * 4).expect_f32(4, expected)
}
