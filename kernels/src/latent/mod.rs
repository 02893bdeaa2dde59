//! LatentRows: completes rows of queries, keys and values of multi-head latent attention, in which all heads share one
//! key, the *latent*.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | q: f32 `[rows, heads, plain + rope dimensions]` |
//! | 2 | kv: f32 `[rows, rank + rope dimensions]`: the latent, then the part of the key that rotates |
//! | 3 | weights of the latent's norm: f32 `[rank]` |
//! | 4 | out: f32 `[rows, heads + 2, rope dimensions + rank]`, read and written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the heads, the plain
//! dimensions, the rope dimensions, the rank, ε (the bits of an f32), β (the bits of an f32), and the length of a
//! period in positions (at least 1).
//!
//! Each head of `out` starts with the rope dimensions, so that [`rope_append`](crate::rope_append) can rotate them:
//!
//! - The query heads get the last values of the heads of q. Another product has written the other `rank` values.
//! - The key and the value, which follow the query heads, get the last values of kv, and the RMS norm of the latent.
//!
//! In a row at position p, the kernel multiplies all queries by 1 + β · ln(1 + ⌊p / period⌋), if β is not zero.

use crate::abi::{IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::params::HEADER_WORDS;
use crate::rms_norm;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "latent_rows",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    constants: 9,
    extents: |constants, extents| {
        let [rows, _, heads, plain, rope, rank, _, _, period] = array(constants);
        let sum = |a: u32, b: u32| a.checked_add(b).filter(|_| period > 0);
        let rows_of = |heads: Option<u32>, width: Option<u32>| match (heads, width) {
            (Some(heads), Some(width)) => words(&[rows, heads, width]),
            _ => IMPOSSIBLE,
        };
        // Token ids and positions follow the header.
        let params = words(&[rows, 2]).saturating_add(HEADER_WORDS as u64 * 4);
        let q = rows_of(Some(heads), sum(plain, rope));
        let out = rows_of(sum(heads, 2), sum(rope, rank));
        extents.copy_from_slice(&[params, q, rows_of(Some(1), sum(rank, rope)), words(&[rank]), out]);
    },
};

/// Returns a grid of rows × the query heads and the latent.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_add(1), 1]
}

pub(crate) struct LatentRows;

impl Spec for LatentRows {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [
            [1, 32, 16, 32],
            [16, 128, 64, 512],
            [3, 7, 5, 11],
            [4, 64, 64, 256],
            [2, 192, 64, 300],
            [5, 1, 2, 130],
        ];
        let shapes = || ROW_SHAPES.into_iter().zip(sizes);
        let scaled = shapes().map(|(shape, sizes)| (shape, sizes, 0.1)).filter(|(shape, ..)| shape.rows > 0);
        let all = shapes().map(|(shape, sizes)| (shape, sizes, 0.0)).chain(scaled);
        all.map(|(shape, sizes, beta)| case(random, shape, sizes, beta)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let sizes = [8, 200, 100, 600].map(|most| 1 + random.below(most));
        let (shape, beta) = (RowShape::random(random, 20), [0.0, 0.3][random.below(2)]);
        case(random, shape, sizes, beta)
    }
}

fn case(random: &mut Random, shape: RowShape, [heads, plain, rope, rank]: [usize; 4], beta: f32) -> Case {
    let (epsilon, period, joint) = (1e-5_f32, 50, rope + rank);
    let q = random.floats(shape.capacity * heads * (plain + rope), 2.0);
    let mut kv = random.floats(shape.capacity * joint, 2.0);
    rms_norm::small_rows(&mut kv, joint);
    let weights = random.floats(rank, 1.5);
    let out = random.floats(shape.capacity * (heads + 2) * joint, 2.0);
    let positions: Vec<u32> = (0..shape.capacity).map(|_| random.below(1000) as u32).collect();
    let mut expected: Vec<_> = out.iter().map(|value| Some(f64::from(*value))).collect();
    for (row, out) in expected.chunks_exact_mut((heads + 2) * joint).enumerate().take(shape.rows) {
        let factor = 1.0 + f64::from(beta) * (1.0 + f64::from(positions[row] / period)).ln();
        for (head, out) in out.chunks_exact_mut(joint).enumerate() {
            if head < heads {
                let rotating = &q[(row * heads + head) * (plain + rope) + plain..][..rope];
                out.iter_mut().zip(rotating).for_each(|(out, value)| *out = Some(f64::from(*value)));
                out.iter_mut().for_each(|out| *out = out.map(|value| value * factor));
            } else {
                let (latent, rotating) = kv[row * joint..][..joint].split_at(rank);
                let normed = rms_norm::reference(latent, &weights, epsilon);
                let values = rotating.iter().map(|value| f64::from(*value)).chain(normed);
                out.iter_mut().zip(values).for_each(|(out, value)| *out = Some(value));
            }
        }
    }
    let constants = [shape.capacity, shape.count_word as usize, heads, plain, rope, rank];
    let numbers = [epsilon.to_bits() as usize, beta.to_bits() as usize, period as usize];
    let label = format!("{heads} heads of {plain} + {rope} on {rank}, β {beta}, {}", shape.label(joint));
    let build = Build::new(Kernel::LatentRows, label, &[&constants[..], &numbers].concat());
    let tokens = vec![0; shape.capacity];
    let params = [&shape.header()[..], &tokens, &positions].concat();
    let build = build.words(&params).floats(&q).floats(&kv).floats(&weights).floats(&out);
    build.expect_f32(4, expected)
}
