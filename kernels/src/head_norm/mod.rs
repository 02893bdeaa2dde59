//! Head norm: divides each query head and each key head of a row by its root mean square, and multiplies each
//! dimension by a weight. The kernel works in place.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | qkv: f32 `[rows, heads + 2 · kv heads, head dimension]`, read and written |
//! | 2 | weights for queries, then weights for keys: f32 `[2, head dimension]` |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the heads,
//! the kv heads, the head dimension, and ε (the bits of an f32). The value heads in `qkv` stay unchanged.
//!
//! Squares and their sum are computed in f32, with the same limit as in [`crate::rms_norm`].

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::rms_norm;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "head_norm",
    bindings: &[Access::Read, Access::ReadWrite, Access::Read],
    constants: 6,
    extents: |constants, extents| {
        let [rows, _, heads, kv_heads, head_dim, _] = *constants else { return };
        let joint = kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(heads));
        let qkv = joint.map_or(IMPOSSIBLE, |joint| words(&[rows, joint, head_dim]));
        extents.copy_from_slice(&[HEADER_BYTES, qkv, words(&[2, head_dim])]);
    },
};

/// Returns a grid of rows × heads. The heads are the query heads and the key heads.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_add(constants[3]), 1]
}

pub(crate) struct HeadNorm;

impl Spec for HeadNorm {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let heads = [[1, 1, 32], [6, 2, 40], [4, 4, 128], [24, 1, 7], [3, 3, 64], [2, 1, 300]];
        ROW_SHAPES.into_iter().zip(heads).map(|(shape, heads)| case(random, shape, heads)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let kv_heads = 1 + random.below(4);
        let heads = [kv_heads * (1 + random.below(4)), kv_heads, 1 + random.below(150)];
        let shape = RowShape::random(random, 20);
        case(random, shape, heads)
    }
}

fn case(random: &mut Random, shape: RowShape, [heads, kv_heads, head_dim]: [usize; 3]) -> Case {
    let epsilon = 1e-5_f32;
    let joint = heads + 2 * kv_heads;
    let (mut qkv, weights) =
        (random.floats(shape.capacity * joint * head_dim, 3.0), random.floats(2 * head_dim, 1.5));
    rms_norm::small_rows(&mut qkv, head_dim);
    let (queries, keys) = weights.split_at(head_dim);
    let mut expected = Vec::new();
    for (i, head) in qkv.chunks_exact(head_dim).enumerate() {
        let weight = if i % joint < heads { queries } else { keys };
        // Values keep their bits, and so do rows beyond the count.
        let is_normed = i / joint < shape.rows && i % joint < heads + kv_heads;
        let normed = rms_norm::reference(head, weight, epsilon);
        expected.extend(normed.into_iter().map(|value| is_normed.then_some(value)));
    }
    let label = format!("{}, {heads} heads on {kv_heads}", shape.label(head_dim));
    let constants = [shape.capacity, shape.count_word as usize, heads, kv_heads, head_dim];
    let constants = [&constants[..], &[epsilon.to_bits() as usize]].concat();
    let case = Build::new(Kernel::HeadNorm, label, &constants);
    case.words(&shape.header()).floats(&qkv).floats(&weights).expect_f32(1, expected)
}
