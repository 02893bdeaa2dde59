//! [RoPE and KV append](crate::rope_append), fused with the [first launch of split
//! attention](super::partial), for a single row. The row's own position is the last position that it attends
//! to, so the group that processes this position can append the row's key and value.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | qkv: f32, the row's queries, keys and values, before rotation |
//! | 2 | key cache, read and written |
//! | 3 | value cache, read and written |
//! | 4 | [partials](super::partial), written |
//! | 5 | inverse frequencies: f32 `[rope dimensions / 2]` |
//!
//! The constants are those of [partial](super::partial), followed by the rope dimensions, the pairing and
//! the magnitude of [RoPE and KV append](crate::rope_append). There is at most one row. [`takes`] defines
//! the supported head dimensions.
//!
//! Each group rotates the queries that share its kv head. The group whose split contains the last position
//! also appends the new key and value. It first reads all other positions of the split. Then it rounds the
//! key and the value to the type of the cache and writes them. If the sequence, position or block of the row
//! is invalid, the kernel appends nothing. Quantized caches have no such kernel.

use super::partial::{expected, partials_bytes};
use super::{LONG, is_window, random_scene, scene};
use crate::abi::{IMPOSSIBLE, abi_for, array};
use crate::cases::{Build, Case, Content, Random};
use crate::kernel::{Accuracy, Kernel, KvType, Spec};
use crate::layout::Layout;
use crate::rope_append::{self, HALVES, INTERLEAVED};
use ragtag_hal::{Access, EntryAbi};

/// Maximum supported head dimension.
const MAX_DIMENSIONS: u32 = 256;

/// Returns whether the kernel supports heads of `head_dimensions` dimensions.
pub fn takes(head_dimensions: u32) -> bool {
    head_dimensions <= MAX_DIMENSIONS && head_dimensions.is_multiple_of(4)
}

const BINDINGS: &[Access] =
    &[Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite, Access::Write, Access::Read];

fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let [rows, _, _, _, heads, _, head_dim, _, _, _, window, _, splits, _, rope @ ..] =
        array::<17>(constants);
    let mut append = [0; 5];
    rope_append::extents(kv_type, &[&constants[..8], &rope, &[1]].concat(), &mut append);
    let [params, qkv, frequencies, keys, values] = append;
    let qkv = if rows <= 1 && takes(head_dim) && is_window(window) { qkv } else { IMPOSSIBLE };
    out.copy_from_slice(&[
        params,
        qkv,
        keys,
        values,
        partials_bytes(rows, heads, head_dim, splits),
        frequencies,
    ]);
}

pub(crate) struct AppendAttention(pub KvType);

impl Spec for AppendAttention {
    fn exists(&self) -> bool {
        !self.0.is_quantised()
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn accuracy(&self) -> Accuracy {
        Accuracy::of_cache(self.0, 3e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(KvType, self.0, "append_attention", BINDINGS, 17, extents)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        // Position, heads, kv heads, head dimension, rope dimensions, pairing, splits.
        for (position, [heads, kv_heads, head_dim, rope_dims], pairing, splits) in [
            (Some(0), [1, 1, 64, 64], INTERLEAVED, 1),
            (Some(200), [8, 1, 64, 64], HALVES, 3),
            (Some(37), [4, 2, 128, 128], HALVES, 5),
            (Some(64), [12, 1, 48, 48], INTERLEAVED, 2),
            (Some(191), [8, 2, 128, 96], HALVES, 64),
            (Some(66), [2, 1, 20, 6], INTERLEAVED, 2),
            (Some(101), [20, 2, 256, 256], HALVES, 2),
            (None, [4, 2, 64, 64], HALVES, 2),
            (Some(LONG[0] - 1), [2, 1, 64, 64], HALVES, 1),
            (Some(LONG[1] - 1), [2, 1, 64, 64], INTERLEAVED, 3),
            (Some(LONG[2] - 1), [2, 1, 64, 64], HALVES, 5),
        ] {
            let rope = (rope_dims, pairing, 1.0);
            let limits = (super::NO_WINDOW, 0.0);
            out.push(case(random, self.0, position, [heads, kv_heads, head_dim], rope, splits, 1.0, limits));
        }
        for (position, heads, rope, splits, limits) in [
            (200, [8, 1, 64], (64, HALVES, 1.0), 3, (7, 0.0)),
            (101, [4, 2, 128], (96, HALVES, 1.2), 2, (40, 3.0)),
            (66, [2, 1, 20], (6, INTERLEAVED, 0.8), 2, (super::NO_WINDOW, 1.5)),
            (101, [4, 2, 128], (128, INTERLEAVED, 1.0), 2, (super::CHUNKS | 40, 0.0)),
            (96, [8, 1, 64], (64, HALVES, 1.0), 3, (super::CHUNKS | 32, 0.0)),
        ] {
            out.push(case(random, self.0, Some(position), heads, rope, splits, 1.0, limits));
        }
        if self.0 == KvType::F16 {
            // The key and value exceed the range of the cache's type.
            let limits = (super::NO_WINDOW, 0.0);
            out.push(case(random, self.0, Some(37), [4, 2, 64], (64, HALVES, 1.0), 2, 1e9, limits));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (_, starts, heads) = random_scene(random, self.0);
        let position = starts.first().map(|(first, _)| *first);
        let rope_dims = 2 * (1 + random.below(heads[2] / 2));
        let pairing = if random.below(2) == 0 { INTERLEAVED } else { HALVES };
        let splits = 1 + random.below(12);
        let window = (1 + random.below(190) as u32) | [0, super::CHUNKS][random.below(2)];
        let limits = (window, [0.0, 2.0][random.below(2)]);
        case(random, self.0, position, heads, (rope_dims, pairing, 1.1), splits, 1.0, limits)
    }
}

/// Builds a case for a row at `position`. If `position` is `None`, the row's cache blocks do not exist. Keys
/// and values have `times` times the magnitude of the queries. `limits` is the window and the cap.
#[allow(clippy::too_many_arguments)]
fn case(
    random: &mut Random,
    kv_type: KvType,
    position: Option<u32>,
    [heads, kv_heads, head_dim]: [usize; 3],
    (rope_dims, pairing, magnitude): (usize, u32, f32),
    splits: usize,
    times: f32,
    (window, cap): (u32, f32),
) -> Case {
    let starts: Vec<_> = position.map(|position| (position, 1)).into_iter().collect();
    let mut scene = scene(random, kv_type, (1, heads, kv_heads, head_dim), &starts);
    scene.limit(window, cap);
    let fresh = scene.freshen(random, rope_dims, (pairing, magnitude), times);
    let rope = [splits, 0, rope_dims, pairing as usize, magnitude.to_bits() as usize];
    let constants = [&scene.constants[..], &rope].concat();
    let label = format!(
        "{}, {splits} splits, {rope_dims} turned, pairing {pairing}, magnitude {magnitude}, times {times}",
        scene.label
    );
    let partials = expected(&scene, splits);
    let build = Build::new(Kernel::AppendAttention(kv_type), label, &constants);
    let build = scene.inputs_from(build, &fresh.qkv).poison(partials.len() * 4);
    let [keys, values] = rope_append::layouts(kv_type, head_dim);
    let build = build.floats(&fresh.frequencies).expect(2, rope_append::expected(keys, fresh.keys));
    let build = build.expect(3, rope_append::expected(values, fresh.values));
    build.expect(4, Content::SomeF32(partials)).done()
}
