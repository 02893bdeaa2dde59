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
//! the kv heads, the head dimension, ε (the bits of an f32), and 1 if all queries and all keys of a row are
//! normalised as one head each, otherwise 0. If it is 1, each value of a row's queries and keys has its own
//! weight: f32 `[heads + kv heads, head dimension]`. The value heads in `qkv` stay unchanged.
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
    constants: 7,
    extents: |constants, extents| {
        let [rows, _, heads, kv_heads, head_dim, _, is_whole] = *constants else { return };
        let joint = kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(heads));
        let qkv = joint.map_or(IMPOSSIBLE, |joint| words(&[rows, joint, head_dim]));
        let weights = if is_whole == 0 { Some(2) } else { heads.checked_add(kv_heads) };
        let weights = weights.map_or(IMPOSSIBLE, |heads| words(&[heads, head_dim]));
        extents.copy_from_slice(&[HEADER_BYTES, qkv, weights]);
    },
};

/// Returns a grid of rows × heads. The heads are the query heads and the key heads.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], if constants[6] == 0 { constants[2].saturating_add(constants[3]) } else { 2 }, 1]
}

pub(crate) struct HeadNorm;

impl Spec for HeadNorm {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let heads = [[1, 1, 32], [6, 2, 40], [4, 4, 128], [24, 1, 7], [3, 3, 64], [2, 1, 300]];
        let shapes = || ROW_SHAPES.into_iter().zip(heads);
        let whole = shapes().filter(|(shape, _)| shape.rows > 0).map(|one| (one, true));
        let all = shapes().map(|one| (one, false)).chain(whole);
        all.map(|((shape, heads), is_whole)| case(random, shape, heads, is_whole)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let kv_heads = 1 + random.below(4);
        let heads = [kv_heads * (1 + random.below(4)), kv_heads, 1 + random.below(150)];
        let shape = RowShape::random(random, 20);
        let is_whole = random.below(2) == 1;
        case(random, shape, heads, is_whole)
    }
}

fn case(
    random: &mut Random,
    shape: RowShape,
    [heads, kv_heads, head_dim]: [usize; 3],
    is_whole: bool,
) -> Case {
    let epsilon = 1e-5_f32;
    let joint = heads + 2 * kv_heads;
    let mut qkv = random.floats(shape.capacity * joint * head_dim, 3.0);
    rms_norm::small_rows(&mut qkv, head_dim);
    let [q, kv] = if is_whole { [heads * head_dim, kv_heads * head_dim] } else { [head_dim; 2] };
    let weights = random.floats(q + kv, 1.5);
    let mut expected = Vec::new();
    for (row, values) in qkv.chunks_exact(joint * head_dim).enumerate() {
        let (queries, rest) = values.split_at(heads * head_dim);
        let (keys, values) = rest.split_at(kv_heads * head_dim);
        let queries = queries.chunks_exact(q).flat_map(|x| rms_norm::reference(x, &weights[..q], epsilon));
        let keys = keys.chunks_exact(kv).flat_map(|x| rms_norm::reference(x, &weights[q..], epsilon));
        // Values keep their bits, and so do rows beyond the count.
        let is_used = row < shape.rows;
        expected.extend(queries.chain(keys).map(|value| is_used.then_some(value)));
        expected.resize(expected.len() + values.len(), None);
    }
    let label = format!("{}, {heads} heads on {kv_heads}, whole {is_whole}", shape.label(head_dim));
    let constants = [shape.capacity, shape.count_word as usize, heads, kv_heads, head_dim];
    let constants = [&constants[..], &[epsilon.to_bits() as usize, usize::from(is_whole)]].concat();
    let case = Build::new(Kernel::HeadNorm, label, &constants);
    case.words(&shape.header()).floats(&qkv).floats(&weights).expect_f32(1, expected)
}
