//! Gated heads: moves queries out of rows in which each query head is followed by its gate, and normalises queries and keys.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, 2 · heads + 2 · kv heads, head dimension]`: query and gate of each head, keys, values |
//! | 2 | weights for queries, then weights for keys: f32 `[2, head dimension]` |
//! | 3 | out: f32 `[rows, heads + 2 · kv heads, head dimension]`, written: queries, keys and values |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the heads, the kv heads,
//! the head dimension, and ε (the bits of an f32). Each query head and each key head gets an RMS norm.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::rms_norm;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "gated_heads",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 6,
    extents: |constants, extents| {
        let [rows, _, heads, kv_heads, dimension, _] = array(constants);
        let joint = |heads: Option<u32>| {
            let joint = kv_heads.checked_mul(2).zip(heads).and_then(|(kv, heads)| kv.checked_add(heads));
            joint.map_or(IMPOSSIBLE, |joint| words(&[rows, joint, dimension]))
        };
        let (x, out) = (joint(heads.checked_mul(2)), joint(Some(heads)));
        extents.copy_from_slice(&[HEADER_BYTES, x, words(&[2, dimension]), out]);
    },
};

/// Returns a grid of rows × all heads of the output.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_add(constants[3].saturating_mul(2)), 1]
}

pub(crate) struct GatedHeads;

impl Spec for GatedHeads {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let heads = [[1, 1, 32], [6, 2, 40], [4, 4, 128], [24, 1, 7], [3, 3, 64], [2, 1, 300]];
        ROW_SHAPES.into_iter().zip(heads).map(|(shape, heads)| case(random, shape, heads)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let kv_heads = 1 + random.below(4);
        let heads = [kv_heads * (1 + random.below(4)), kv_heads, 1 + random.below(300)];
        let shape = RowShape::random(random, 20);
        case(random, shape, heads)
    }
}

fn case(random: &mut Random, shape: RowShape, [heads, kv_heads, dimension]: [usize; 3]) -> Case {
    let epsilon = 1e-5_f32;
    let mut x = random.floats(shape.capacity * 2 * (heads + kv_heads) * dimension, 3.0);
    rms_norm::small_rows(&mut x, dimension);
    let weights = random.floats(2 * dimension, 1.5);
    let mut expected = Vec::new();
    for (row, values) in x.chunks_exact(2 * (heads + kv_heads) * dimension).enumerate() {
        for (head, values) in values.chunks_exact(dimension).enumerate() {
            let own = &weights[if head < 2 * heads { 0 } else { dimension }..][..dimension];
            let values: Vec<f64> = match head {
                gate if gate < 2 * heads && gate % 2 == 1 => continue,
                value if value >= 2 * heads + kv_heads => values.iter().map(|x| f64::from(*x)).collect(),
                _ => rms_norm::reference(values, own, epsilon),
            };
            expected.extend(values.into_iter().map(|value| (row < shape.rows).then_some(value)));
        }
    }
    let label = format!("{}, {heads} heads on {kv_heads}", shape.label(dimension));
    let constants = [shape.capacity, shape.count_word as usize, heads, kv_heads, dimension];
    let constants = [&constants[..], &[epsilon.to_bits() as usize]].concat();
    let build = Build::new(Kernel::GatedHeads, label, &constants).words(&shape.header());
    build.floats(&x).floats(&weights).words(&vec![u32::MAX; expected.len()]).expect_f32(3, expected)
}
