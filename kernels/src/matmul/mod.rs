//! MatMul: y = x · Wᵀ, or y += x · Wᵀ.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | weights: [`Rows16`](crate::layout) of `[n, k]` |
//! | 2 | x: f32 `[rows, k]` or [int8 activations](crate::quantize) of k columns |
//! | 3 | y: f32, `n` values of rows that lie `stride` values apart, read and written (read only where it is added to) |
//!
//! Constants: rows, count word, n, k, accumulate (0 or 1), stride (at least n): several products may stand side by side in
//! joint rows, each bound from its own first column on, and what is between a row's n values and the next row's is another's.
//!
//! One group for each [`TASK_ROWS`] rows of weights, which loops
//! over the tokens, so that weights are read from memory once.
//!
//! With f32 activations weights are dequantised to f32 in registers (class *exact*). With int8 activations integer dot
//! products are taken block by block (class *fast*); there are kernels for types with integer quanta only, so callers
//! ask [`activations_for`]. A sum is taken over blocks of 32 columns in order, whatever else is in the launch: a row of
//! y depends on its row of x alone, bit for bit.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, strided, words};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Activations, Kernel};
use crate::layout::Resident;
use crate::quantize;
use ragtag_hal::{Access, EntryAbi};

/// Rows of weights, that is columns of y, that one group computes.
pub const TASK_ROWS: u32 = 32;

/// The activations to use with weights of this type where `wanted` are asked for: weights without integer quanta take
/// f32 in both classes.
pub fn activations_for(tensor_type: TensorType, wanted: Activations) -> Activations {
    match tensor_type {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => Activations::F32,
        TensorType::Q8_0
        | TensorType::Q4_0
        | TensorType::Q4_1
        | TensorType::Q5_0
        | TensorType::Q5_1
        | TensorType::Q4_K
        | TensorType::Q5_K
        | TensorType::Q6_K
        | TensorType::TQ1_0
        | TensorType::TQ2_0 => wanted,
    }
}

macro_rules! abis {
    ($($name:ident),*) => {
        /// The binary interface for weights of this type.
        pub fn abi(tensor_type: TensorType, activations: Activations) -> &'static EntryAbi {
            match (tensor_type, activations) {
                $((TensorType::$name, Activations::F32) => {
                    static ABI: EntryAbi = EntryAbi {
                        name: concat!("matmul_", stringify!($name), "_f32"),
                        bindings: BINDINGS,
                        constants: 6,
                        extents: |constants, out| extents(TensorType::$name, Activations::F32, constants, out),
                    };
                    &ABI
                }
                (TensorType::$name, Activations::Int8) => {
                    static ABI: EntryAbi = EntryAbi {
                        name: concat!("matmul_", stringify!($name), "_int8"),
                        bindings: BINDINGS,
                        constants: 6,
                        extents: |constants, out| extents(TensorType::$name, Activations::Int8, constants, out),
                    };
                    &ABI
                })*
            }
        }
    };
}
abis!(F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0);

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::ReadWrite];

fn extents(tensor_type: TensorType, activations: Activations, constants: &[u32], out: &mut [u64]) {
    let [rows, _, n, k, _, stride] = *constants else { return };
    let weights = Resident::new(tensor_type, n.into(), k.into()).map_or(IMPOSSIBLE, |r| r.bytes());
    let x = match activations {
        Activations::F32 => words(&[rows, k]),
        Activations::Int8 => quantize::rows_extent(rows, k),
    };
    out.copy_from_slice(&[HEADER_BYTES, weights, x, strided(rows, stride, n)]);
}

/// One group for each [`TASK_ROWS`] rows of weights.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[2].div_ceil(TASK_ROWS), 1, 1]
}

/// x · Wᵀ in f64, one row of x.
fn reference(weights: &[f32], x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    weights.chunks_exact(x.len()).map(dot).collect()
}

pub(crate) fn cases(tensor_type: TensorType, activations: Activations, seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let shapes =
        ROW_SHAPES.into_iter().zip([(16, 256), (48, 512), (33, 256), (17, 768), (16, 256), (100, 1024)]);
    let long = [(RowShape { capacity: 70, rows: 41, count_word: 0 }, (40, 256))];
    let mut out = Vec::new();
    for (i, (shape, (n, k))) in shapes.chain(long).enumerate() {
        // Short blocks allow odd numbers of them.
        let k = if tensor_type.block_values() < 256 { k / 8 - k % 3 / 2 * 32 } else { k };
        out.push(case(&mut random, (tensor_type, activations), shape, (n, k), i % 2 == 1));
    }
    out
}

fn case(
    random: &mut Random,
    (tensor_type, activations): (TensorType, Activations),
    shape: RowShape,
    (n, k): (usize, usize),
    accumulate: bool,
) -> Case {
    let layout = Resident::new(tensor_type, n as u64, k as u64).expect("k is whole blocks");
    let file = random.blocks(tensor_type, n * k);
    let mut resident = vec![0; layout.bytes() as usize];
    layout.pack(0..layout.groups(), &file, &mut resident).expect("sizes are the layout's");
    let mut weights = vec![0.0; n * k];
    dequantise(tensor_type, &file, &mut weights).expect("n rows of k are whole blocks");

    let x = random.floats(shape.capacity * k, 2.0);
    // Every third shape is a part of longer rows.
    let stride = if shape.capacity % 3 == 2 { n + 21 } else { n };
    let constants = [shape.capacity, shape.count_word as usize, n, k, usize::from(accumulate), stride];
    let label = format!("{} → {n} of {stride}, accumulate {accumulate}", shape.label(k));
    let build = Build::new(Kernel::MatMul(tensor_type, activations), label, &constants);
    let build = build.words(&shape.header()).bytes(resident);
    let (build, x): (_, Vec<Vec<f64>>) = match activations {
        Activations::F32 => {
            let rows = x.chunks_exact(k).map(|row| row.iter().map(|x| f64::from(*x)).collect());
            (build.floats(&x), rows.collect())
        }
        Activations::Int8 => {
            let rows: Vec<Vec<u8>> = x.chunks_exact(k).map(quantize::reference).collect();
            let values =
                rows.iter().map(|row| quantize::values(row, k).expect("the reference's sums are right"));
            (build.bytes(rows.concat()), values.collect())
        }
    };
    let before = random.floats((shape.capacity - 1) * stride + n, 1.0);
    let mut expected = vec![None; before.len()];
    let rows = expected.chunks_mut(stride).zip(before.chunks(stride)).zip(&x);
    for ((expected, before), x) in rows.take(shape.rows) {
        for ((expected, sum), before) in expected.iter_mut().zip(reference(&weights, x)).zip(before) {
            *expected = Some(if accumulate { sum + f64::from(*before) } else { sum });
        }
    }
    let build = if accumulate { build.floats(&before) } else { build.poison(before.len() * 4) };
    build.expect_f32(3, expected)
}
