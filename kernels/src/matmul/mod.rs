//! MatMul: y = x · Wᵀ, or y += x · Wᵀ.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | weights: `[n, k]` in the variant's [layout](crate::layout) |
//! | 2 | x: f32 `[rows, k]`, [int8](crate::quantize) or [f16 activations](crate::half_rows) of k columns |
//! | 3 | y: f32, `n` values per row with stride `stride` (in values), read and written (read only to accumulate) |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, n, k,
//! accumulate (0 or 1), and the stride (at least n). Several products may write to different columns of the
//! same rows. Each of them binds y at its own first column. The values between the n columns of a product and
//! the next row belong to the other products.
//!
//! A launch has one group per [`TASK_ROWS`] rows of weights. A group loops over all rows of x, so that it
//! reads its weights from memory only once.
//!
//! The activation type determines the arithmetic:
//!
//! - f32: weights are dequantized to f32 in registers (class *exact*).
//! - int8: integer dot products, block by block (class *fast*).
//! - f16: products of f16 or bf16 values, accumulated in f32, on matrix units where available (class *fast*).
//!   Quantised weights are rounded to f16.
//!   Without matrix units, products in sub-groups accumulate up to 16 products in f16.
//!   For bf16 weights, the matrix-unit kernels for AMD and Intel devices, and for NVIDIA devices of compute
//!   capability 8.0 or higher, convert f16 activations to bf16.
//!
//! Some types have no kernels for some activations: see [`takes`]. Callers choose the activation type with
//! [`activations_for`](crate::activations_for). Each variant has a fixed order of summation, usually by
//! blocks of 32 columns. A row of y depends, bit for bit, only on its own row of x, and not on other rows of
//! the launch.

pub mod normed;

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, strided};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::{COLUMN_BLOCK, Layout, Resident};
use crate::types::each_type;
use crate::{half_rows, quantize};
use ragtag_hal::{Access, EntryAbi};

/// Number of weight rows per group. Each weight row is a column of y.
pub const TASK_ROWS: u32 = 32;

/// Returns whether there are products of weights with rows of `columns` values. [`crate::gemm`] computes others.
pub fn takes_columns(columns: u32) -> bool {
    columns.is_multiple_of(COLUMN_BLOCK as u32)
}

/// Returns whether there are products of `tensor_type` weights with `activations`. Every type supports f32.
/// Types with integer quants support int8, and these and types with two bytes per value support f16.
pub fn takes(tensor_type: TensorType, activations: Activations) -> bool {
    match activations {
        Activations::F32 => true,
        Activations::Int8 => tensor_type.has_integer_quants(),
        Activations::F16 => tensor_type.block_bytes() == 2 || tensor_type.has_integer_quants(),
    }
}

macro_rules! abis {
    ($($name:ident)*) => {
        /// Returns the binary interface for weights of `tensor_type` in `layout`, and for `activations`.
        pub fn abi(tensor_type: TensorType, layout: Layout, activations: Activations) -> &'static EntryAbi {
            match (tensor_type, layout, activations) {
                $((TensorType::$name, Layout::Rows16, Activations::F32) => abi!($name, Rows16, F32),
                (TensorType::$name, Layout::Rows16, Activations::Int8) => abi!($name, Rows16, Int8),
                (TensorType::$name, Layout::Rows16, Activations::F16) => abi!($name, Rows16, F16),
                (TensorType::$name, Layout::RowMajor, Activations::F32) => abi!($name, RowMajor, F32),
                (TensorType::$name, Layout::RowMajor, Activations::Int8) => abi!($name, RowMajor, Int8),
                (TensorType::$name, Layout::RowMajor, Activations::F16) => abi!($name, RowMajor, F16),)*
            }
        }
    };
}

macro_rules! abi {
    ($name:ident, $layout:ident, $activations:ident) => {{
        static ABI: EntryAbi = EntryAbi {
            name: concat!(
                "matmul_",
                stringify!($name),
                "_",
                stringify!($layout),
                "_",
                stringify!($activations)
            ),
            bindings: BINDINGS,
            constants: 6,
            extents: |constants, out| {
                let types = (TensorType::$name, Layout::$layout, Activations::$activations);
                extents(types, constants, out)
            },
        };
        &ABI
    }};
}
each_type!(abis);

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::ReadWrite];

fn extents(
    (tensor_type, layout, activations): (TensorType, Layout, Activations),
    constants: &[u32],
    out: &mut [u64],
) {
    let [rows, _, n, k, _, stride] = array(constants);
    let weights = Resident::new(tensor_type, layout, n.into(), k.into()).map_or(IMPOSSIBLE, |r| r.bytes());
    let x = activations.rows_extent(rows, k);
    out.copy_from_slice(&[HEADER_BYTES, weights, x, strided(rows, stride, n)]);
}

/// Returns whether a launch has so few results that tiles of 64 × 64 of them would use a small part of a GPU.
pub(crate) fn is_narrow(constants: &[u32]) -> bool {
    constants[2] <= 8 || constants[0].div_ceil(64).saturating_mul(constants[2].div_ceil(64)) <= 64
}

/// Returns a grid with one group per [`TASK_ROWS`] rows of weights.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[2].div_ceil(TASK_ROWS), 1, 1]
}

/// Computes x · Wᵀ for one row of x, in f64.
fn reference(weights: &[f32], x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    weights.chunks_exact(x.len()).map(dot).collect()
}

pub(crate) struct MatMul(pub TensorType, pub Activations);

impl Spec for MatMul {
    fn exists(&self) -> bool {
        takes(self.0, self.1)
    }

    fn is_optional(&self) -> bool {
        // Weights can be widened before the product.
        self.0.block_values() > 1 && self.1 == Activations::F16
    }

    fn accuracy(&self) -> Accuracy {
        match self.1 {
            Activations::F32 => Accuracy::exact(1e-5),
            Activations::Int8 => Accuracy::fast(2e-6),
            Activations::F16 if self.0.block_values() == 1 => Accuracy::fast(5e-6),
            // Weights are rounded to f16.
            Activations::F16 => Accuracy::fast(6e-4),
        }
    }

    fn abi(&self, layout: Layout) -> &'static EntryAbi {
        abi(self.0, layout, self.1)
    }

    fn layout(&self, kept: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        // Matrix units load rows of plain weights.
        let is_plain = self.0.block_values() == 1;
        Some(if is_plain && self.1 == Activations::F16 { Layout::RowMajor } else { kept(self.0) })
    }

    fn cases(&self, layout: Layout, random: &mut Random) -> Vec<Case> {
        let Self(tensor_type, activations) = *self;
        let shapes =
            ROW_SHAPES.into_iter().zip([(16, 256), (48, 512), (33, 256), (17, 768), (16, 256), (100, 1024)]);
        let long = [(RowShape { capacity: 70, rows: 41, count_word: 0 }, (40, 256))];
        // More than one tile of matrix units, and more K tiles than are in flight.
        let wide = (RowShape { capacity: 150, rows: 140, count_word: 0 }, (280, 4096));
        let wide = (activations == Activations::F16).then_some(wide);
        let mut out = Vec::new();
        for (i, (shape, (n, k))) in shapes.chain(long).chain(wide).enumerate() {
            // Types with short blocks also support odd numbers of blocks.
            let k = if tensor_type.block_values() < 256 { k / 8 - k % 3 / 2 * 32 } else { k };
            out.push(case(random, (tensor_type, layout, activations), shape, (n, k), i % 2 == 1));
        }
        if activations == Activations::Int8 {
            let types = (tensor_type, layout, activations);
            let mut file = random.blocks(tensor_type, 16 * 256);
            // Sums of the largest quants and activations.
            for block in file.chunks_exact_mut(tensor_type.block_bytes()) {
                block.fill(0xff);
                tensor_type.scales().iter().for_each(|scale| scale.put_typical(block, 1.0));
            }
            let shape = RowShape { capacity: 3, rows: 3, count_word: 0 };
            out.push(case_of(&file, &[1.0; 3 * 256], random, types, shape, (16, 256), false));
        }
        if activations == Activations::F16 {
            // The sum of two products may exceed the range of f16.
            let shape = RowShape { capacity: 20, rows: 19, count_word: 0 };
            let k = if tensor_type.block_values() < 256 { 288 } else { 512 };
            out.push(case_up_to(6e4, random, (tensor_type, layout, activations), shape, (40, k), false));
        }
        out
    }

    fn random_case(&self, layout: Layout, random: &mut Random) -> Case {
        let Self(tensor_type, activations) = *self;
        let shape = RowShape::random(random, 48);
        let blocks = 1 + random.below(12);
        let k = if tensor_type.block_values() < 256 { blocks * 32 } else { blocks.div_ceil(4) * 256 };
        let (n, accumulate) = (1 + random.below(120), random.below(2) == 0);
        case(random, (tensor_type, layout, activations), shape, (n, k), accumulate)
    }
}

/// Returns cases for products that do not read the parameter block and therefore compute all rows of the
/// capacity. The cases have row-major f16 weights and f16 activations. Some have odd numbers of rows and
/// columns.
pub(crate) fn cases_of_whole_launches(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let shapes = [
        (1, 1, 32),
        (2, 17, 96),
        (17, 33, 256),
        (33, 100, 416),
        (131, 257, 160),
        (512, 64, 1024),
        (515, 67, 352),
    ];
    let case = |(i, (rows, n, k))| whole_launch(&mut random, rows, (n, k), i % 2 == 1);
    shapes.into_iter().enumerate().map(case).collect()
}

/// Returns a case of random shape for a product that computes all rows of the capacity.
pub(crate) fn random_case_of_a_whole_launch(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let (rows, n, k) = (1 + random.below(600), 1 + random.below(120), 32 * (1 + random.below(12)));
    let accumulate = random.below(2) == 0;
    whole_launch(&mut random, rows, (n, k), accumulate)
}

fn whole_launch(random: &mut Random, rows: usize, shape: (usize, usize), accumulate: bool) -> Case {
    let form = (TensorType::F16, Layout::RowMajor, Activations::F16);
    let all_rows = RowShape { capacity: rows, rows, count_word: 0 };
    case(random, form, all_rows, shape, accumulate)
}

fn case(
    random: &mut Random,
    types: (TensorType, Layout, Activations),
    shape: RowShape,
    sides: (usize, usize),
    accumulate: bool,
) -> Case {
    case_up_to(2.0, random, types, shape, sides, accumulate)
}

/// Returns a case whose activations have absolute values up to `largest`.
fn case_up_to(
    largest: f32,
    random: &mut Random,
    types: (TensorType, Layout, Activations),
    shape: RowShape,
    (n, k): (usize, usize),
    accumulate: bool,
) -> Case {
    let (file, x) = (random.blocks(types.0, n * k), random.floats(shape.capacity * k, largest));
    case_of(&file, &x, random, types, shape, (n, k), accumulate)
}

/// Returns a case with the weights of `file` and with activations `x`.
fn case_of(
    file: &[u8],
    x: &[f32],
    random: &mut Random,
    (tensor_type, layout, activations): (TensorType, Layout, Activations),
    shape: RowShape,
    (n, k): (usize, usize),
    accumulate: bool,
) -> Case {
    let layout = Resident::new(tensor_type, layout, n as u64, k as u64).expect("k is whole blocks");
    let mut resident = vec![0; layout.bytes() as usize];
    layout.pack(0..layout.groups(), file, &mut resident).expect("sizes are the layout's");
    let mut weights = vec![0.0; n * k];
    dequantise(tensor_type, file, &mut weights).expect("n rows of k are whole blocks");

    // In every third shape, y is a part of longer rows.
    let stride = if shape.capacity % 3 == 2 { n + 21 } else { n };
    let constants = [shape.capacity, shape.count_word as usize, n, k, usize::from(accumulate), stride];
    let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let label = format!("{} up to {largest:.0} → {n} of {stride}, accumulate {accumulate}", shape.label(k));
    let build = Build::new(Kernel::MatMul(tensor_type, activations), label, &constants);
    let build = build.words(&shape.header()).bytes(resident);
    let (build, x): (_, Vec<Vec<f64>>) = match activations {
        Activations::F32 => {
            let rows = x.chunks_exact(k).map(|row| row.iter().map(|x| f64::from(*x)).collect());
            (build.floats(x), rows.collect())
        }
        Activations::Int8 => {
            let rows: Vec<Vec<u8>> = x.chunks_exact(k).map(quantize::reference).collect();
            let values =
                rows.iter().map(|row| quantize::values(row, k).expect("the reference's sums are right"));
            (build.bytes(rows.concat()), values.collect())
        }
        Activations::F16 => {
            let rows: Vec<Vec<u8>> = x.chunks_exact(k).map(half_rows::reference).collect();
            let values = rows.iter().map(|row| half_rows::values(row, k).expect("the padding is zero"));
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
