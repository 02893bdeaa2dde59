//! Layer norm: each row less its mean, over its standard deviation, times a weight and plus a bias for each column.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: f32 `[rows, width]` |
//! | 1 | weight: f32 `[width]` |
//! | 2 | bias: f32 `[width]` |
//! | 3 | out: f32 `[rows, width]`, written |
//!
//! Constants: rows, width, ε (the bits of an f32), which is added to the variance. One group a row.

use crate::abi::words;
use crate::cases::{Build, Case, Random};
use crate::kernel::Kernel;
use ragtag_hal::{Access, EntryAbi};

/// The binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "layer_norm",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, width, _] = *constants else { return };
        let (x, column) = (words(&[rows, width]), words(&[width]));
        extents.copy_from_slice(&[x, column, column, x]);
    },
};

/// One group a row.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], 1, 1]
}

fn reference(row: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> Vec<f64> {
    let count = row.len() as f64;
    let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let columns = row.iter().zip(weight.iter().zip(bias));
    columns.map(|(x, (w, b))| (f64::from(*x) - mean) * scale * f64::from(*w) + f64::from(*b)).collect()
}

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    [(1, 1, 1e-5), (3, 67, 1e-5), (17, 257, 1e-6), (2, 4096, 1e-5), (5, 2, 1e-3)]
        .map(|(rows, width, epsilon)| case(&mut random, rows, width, epsilon))
        .into()
}

pub(crate) fn random_case(random: &mut Random) -> Case {
    let (rows, width) = (1 + random.below(30), 1 + random.below(1500));
    case(random, rows, width, 1e-5)
}

fn case(random: &mut Random, rows: usize, width: usize, epsilon: f32) -> Case {
    let (mean, size) = (random.float(3.0), 0.5 + random.float(0.4));
    let x: Vec<f32> = random.floats(rows * width, size).into_iter().map(|x| x + mean).collect();
    let (weight, bias) = (random.floats(width, 2.0), random.floats(width, 1.0));
    let wanted = x.chunks_exact(width).flat_map(|row| reference(row, &weight, &bias, epsilon));
    let wanted = wanted.map(Some).collect();
    let constants = [rows, width, epsilon.to_bits() as usize];
    let case = Build::new(Kernel::LayerNorm, format!("{rows} rows × {width}"), &constants);
    let case = case.floats(&x).floats(&weight).floats(&bias);
    case.poison(x.len() * 4).expect_f32(3, wanted)
}
