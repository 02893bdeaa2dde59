//! Rope: rotary position embedding, in place.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters, up to the positions |
//! | 1 | inverse frequencies: f32 `[rope dimensions / 2]` |
//! | 2 | x: f32 `[rows, heads · head dimension]`, read and written |
//!
//! Constants: rows, heads, head dimension, rope dimensions, pairing. Pair i of each head turns by position · frequency i;
//! pairing [`INTERLEAVED`] pairs values 2i and 2i + 1, [`HALVES`] pairs i and i + rope dimensions / 2. Dimensions beyond
//! the rope dimensions (an even number, at most the head dimension) are left alone. One group a row.

use crate::abi::{IMPOSSIBLE, params, words};
use crate::cases::{Build, Case, Params, Random};
use crate::kernel::Kernel;
use crate::params::ParamsShape;
use ragtag_hal::{Access, EntryAbi};

/// Pairs of neighbours.
pub const INTERLEAVED: u32 = 0;
/// Pairs of one value in each half.
pub const HALVES: u32 = 1;

/// The binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "rope",
    bindings: &[Access::Read, Access::Read, Access::ReadWrite],
    constants: 5,
    extents: |constants, extents| {
        let [rows, heads, head_dim, rope_dims, _] = *constants else { return };
        let fits = rope_dims <= head_dim && rope_dims.is_multiple_of(2);
        let x = if fits { words(&[rows, heads, head_dim]) } else { IMPOSSIBLE };
        extents.copy_from_slice(&[params(rows, 0, 0, 0), words(&[rope_dims / 2]), x]);
    },
};

/// Turns one head.
fn reference(head: &mut [f64], frequencies: &[f32], position: u32, pairing: u32) {
    let half = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = if pairing == INTERLEAVED { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (sin, cos) = (f64::from(position) * f64::from(*frequency)).sin_cos();
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    for (capacity, rows, heads, head_dim, rope_dims, pairing) in [
        (1, 1, 1, 64, 64, INTERLEAVED),
        (17, 7, 3, 64, 64, HALVES),
        (4, 4, 2, 80, 32, HALVES),
        (3, 2, 5, 34, 34, INTERLEAVED),
        (2, 2, 1, 128, 6, INTERLEAVED),
    ] {
        let frequencies: Vec<f32> =
            (0..rope_dims / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / rope_dims as f32)).collect();
        let width = heads * head_dim;
        let x = random.floats(capacity * width, 2.0);
        let mut positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        positions[0] = if rows > 1 { 131_071 } else { 0 };
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (row, position) in expected.chunks_exact_mut(width).zip(&positions) {
            row.chunks_exact_mut(head_dim).for_each(|head| reference(head, &frequencies, *position, pairing));
        }
        let expected = expected.into_iter().enumerate().map(|(i, v)| {
            (i < rows * width && i % head_dim < rope_dims).then_some(v) // the rest must keep its bits
        });
        let shape = ParamsShape { rows: capacity as u32, logit_rows: 0, sequences: 0, table_blocks: 0 };
        let params = Params { positions, ..Params::new(shape) };
        let label = format!(
            "{rows} of {capacity} rows, {heads} heads of {head_dim}, {rope_dims} turned, pairing {pairing}"
        );
        let case = Build::new(Kernel::Rope, label, &[capacity, heads, head_dim, rope_dims, pairing as usize]);
        out.push(
            case.words(&params.words()).floats(&frequencies).floats(&x).expect_f32(2, expected.collect()),
        );
    }
    out
}
