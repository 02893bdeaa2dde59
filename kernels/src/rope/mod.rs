//! Rope: rotary position embedding (RoPE) of heads.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | positions: u32 `[rows]` |
//! | 1 | turns: u32 `[rope dimensions / 2, 2]`; [`turn`] computes them |
//! | 2 | x: `[rows, heads, head dimension]`, values of any element type |
//! | 3 | out: of the same shape and type as x, written |
//!
//! The constants are the [number](crate::elements::number) of the element type, the rows, the heads, the head
//! dimension, the rope dimensions, and the pairing. There are fewer than 2^32 values. Intermediate values are
//! f32. [`crate::elements`] defines the padding after an odd number of 16-bit values.
//!
//! Pair i of each head is rotated by the row's position times turn i. With [`INTERLEAVED`], pair i consists
//! of values 2i and 2i + 1. With [`HALVES`], it consists of values i and i + rope dimensions / 2. The number
//! of rope dimensions is even and at most the head dimension. The other dimensions are copied.
//!
//! Turns and angles are integers in units of 2^−64 of a full turn, modulo a full turn. Angles are therefore
//! as exact at large positions as at small ones, and the same on every device. The kernels compute sines and
//! cosines with their own series, because the kernel languages guarantee little accuracy.

use crate::abi::{IMPOSSIBLE, array, product, words};
use crate::cases::{Build, Case, Random, Stored};
use crate::elements::{self, Operator, in_a_word};
use crate::kernel::{ElementType, Kernel, Spec};
use crate::layout::Layout;
pub use crate::rope_append::{HALVES, INTERLEAVED};
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};
use std::f64::consts::TAU;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "rope",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 6,
    extents: |constants, extents| {
        let [kind, rows, heads, head_dim, rope_dims, pairing] = array(constants);
        let turns = rope_dims <= head_dim && rope_dims.is_multiple_of(2) && pairing <= HALVES;
        let x = product(&[rows, heads, head_dim]);
        let x = if turns { elements::bytes(kind, x) } else { IMPOSSIBLE };
        extents.copy_from_slice(&[words(&[rows]), words(&[rope_dims]), x, x]);
    },
};

/// Returns a grid with one work item per output word.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let count = product(&constants[1..4]);
    elements::grid(count.div_ceil(in_a_word(constants[0]).unwrap_or(1).into()) as u32)
}

/// Converts `frequency`, in radians per position, to the turn that the kernel reads. Returns the low word,
/// then the high word.
pub fn turn(frequency: f64) -> [u32; 2] {
    let turns = (frequency / TAU).rem_euclid(1.0);
    let fixed = (turns * 2_f64.powi(64)) as u64; // Saturates just below a whole turn.
    [fixed as u32, (fixed >> 32) as u32]
}

/// Returns the angle position × turn modulo a full turn, truncated to units of 2^−32 of a full turn.
#[inline(always)]
pub(crate) fn angle(position: u32, [low, high]: [u32; 2]) -> u32 {
    let carried = (u64::from(position) * u64::from(low)) >> 32;
    position.wrapping_mul(high).wrapping_add(carried as u32)
}

/// Computes the sine and cosine of `angle`, which is in units of 2^−32 of a full turn. Uses series around the
/// nearest quarter turn.
#[inline(always)]
pub(crate) fn sin_cos(angle: u32) -> (f32, f32) {
    let quarter = angle.wrapping_add(1 << 29) >> 30;
    let rest = angle.wrapping_sub(quarter << 30) as i32 as f32;
    let x = rest * (TAU / 4_294_967_296.0) as f32;
    let z = x * x;
    let sin = x + x * z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * (-1.0 / 5040.0 + z / 362_880.0)));
    let cos = 1.0 + z * (-0.5 + z * (1.0 / 24.0 + z * (-1.0 / 720.0 + z / 40_320.0)));
    match quarter {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

pub(crate) struct Rope;

impl Spec for Rope {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::elements(&[include_str!("rope.wgsl")]);
        Some(Operator { grid, c: include_str!("rope.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        [
            (vec![0], 1, 64, 64, INTERLEAVED),
            (vec![5, 0, 131_071], 6, 40, 40, HALVES),
            (vec![1_000_003, 17], 3, 34, 32, HALVES),
            (vec![7, 63], 5, 33, 6, INTERLEAVED),
            (vec![1; 9], 2, 3, 0, HALVES),
            (vec![2, 1 << 31], 1, 128, 128, INTERLEAVED),
        ]
        .into_iter()
        .flat_map(|(positions, heads, head_dim, rope_dims, pairing)| {
            ElementType::ALL
                .map(|element| case(random, element, &positions, heads, [head_dim, rope_dims], pairing))
        })
        .collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let positions: Vec<u32> = (0..1 + random.below(20)).map(|_| random.below(200_000) as u32).collect();
        let head_dim = 1 + random.below(160);
        let dims = [head_dim, random.below(head_dim / 2 + 1) * 2];
        let (heads, pairing) = (1 + random.below(9), random.below(2) as u32);
        let element = random.element();
        case(random, element, &positions, heads, dims, pairing)
    }
}

fn case(
    random: &mut Random,
    element: ElementType,
    positions: &[u32],
    heads: usize,
    [head_dim, rope_dims]: [usize; 2],
    pairing: u32,
) -> Case {
    let pairs = rope_dims / 2;
    // An empty list of turns is bound with one turn, because bindings cannot be empty.
    let frequencies: Vec<f64> =
        (0..pairs.max(1)).map(|i| 10000_f64.powf(-2.0 * i as f64 / rope_dims.max(1) as f64)).collect();
    let turns: Vec<u32> = frequencies.iter().flat_map(|frequency| turn(*frequency)).collect();
    let x = Stored::new(element, &random.floats(positions.len() * heads * head_dim, 2.0));
    let mut wanted = x.values;
    for (row, head) in wanted.chunks_exact_mut(head_dim).enumerate() {
        for (i, frequency) in frequencies.iter().enumerate().take(pairs) {
            let (a, b) = if pairing == INTERLEAVED { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
            let (sin, cos) = (f64::from(positions[row / heads]) * frequency).sin_cos();
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
    let label = format!(
        "{element} at {positions:?}, {heads} heads of {head_dim}, {rope_dims} turned, pairing {pairing}"
    );
    let kind = elements::number(element) as usize;
    let constants = [kind, positions.len(), heads, head_dim, rope_dims, pairing as usize];
    let case = Build::new(Kernel::Rope, label, &constants).words(positions).words(&turns);
    case.bytes(x.bytes).expect_elements(3, element, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_cosines_match_the_library() {
        for position in (0..3_000_000_u32).step_by(997) {
            for frequency in [1.0, 0.3, 1e-4, 7.5, -0.1] {
                let (sin, cos) = sin_cos(angle(position, turn(frequency)));
                let (wanted_sin, wanted_cos) = (f64::from(position) * frequency).sin_cos();
                let near = |a: f32, b: f64| (f64::from(a) - b).abs() < 2e-7;
                assert!(near(sin, wanted_sin) && near(cos, wanted_cos), "{position} · {frequency}");
            }
        }
    }
}
