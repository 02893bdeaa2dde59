//! Products with a fused [RMS norm](crate::rms_norm) of their input. The product with the gate and up weights
//! of an FFN can also be fused with [SiLU(gate) · up](crate::silu_mul). These kernels serve steps with few
//! rows, in which launch latency dominates.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | weights: `[n, k]` in the variant's [layout](crate::layout) |
//! | 2 | x: f32 `[rows, k]` |
//! | 3 | y: f32, `n` values per row (`n / 2` if gated) with stride `stride` (in values), read and written |
//! | 4 | g, the weights of the norm: f32 `[k]` |
//!
//! The constants are those of a [product](super), followed by ε (the bits of an f32).
//!
//! y = (W · (x ∘ g)) / √(mean x² + ε). Each group reads a whole row of x anyway, so it also computes the
//! row's sum of squares, and scales its own results at the end. In the gated product, the first half of W
//! holds the gate weights, and the second half holds the up weights. The result y is SiLU(gate) · up. There
//! is no int8 version, because each group would have to quantize all of x.

use super::{Resident, TensorType, reference};
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, strided, words};
use crate::blocks::dequantise;
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::{GROUP_ROWS, Layout};
use crate::silu_mul::Gate;
use crate::types::each_type;
use ragtag_hal::{Access, EntryAbi};

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::ReadWrite, Access::Read];

/// Returns whether the `n` rows of a matrix of type `tensor_type` can be split into gate rows and up rows.
/// The two halves must have the same size, and must not share a group of interleaved rows.
pub fn has_gates(tensor_type: TensorType, n: u32) -> bool {
    let alike = if tensor_type.block_values() > 1 { 2 * GROUP_ROWS as u32 } else { 2 };
    n.is_multiple_of(alike)
}

macro_rules! abis {
    ($($name:ident)*) => {
        /// Returns the binary interface for weights of `tensor_type` in `layout`, for a product with or
        /// without a gate.
        pub fn abi(tensor_type: TensorType, layout: Layout, gated: bool) -> &'static EntryAbi {
            match (tensor_type, layout, gated) {
                $((TensorType::$name, Layout::Rows16, false) => abi!($name, Rows16, false),
                (TensorType::$name, Layout::Rows16, true) => abi!($name, Rows16, true),
                (TensorType::$name, Layout::RowMajor, false) => abi!($name, RowMajor, false),
                (TensorType::$name, Layout::RowMajor, true) => abi!($name, RowMajor, true),)*
            }
        }
    };
}

macro_rules! abi {
    ($name:ident, $layout:ident, $gated:literal) => {{
        static ABI: EntryAbi = EntryAbi {
            name: concat!("normed_", stringify!($name), "_", stringify!($layout), "_gated_", $gated),
            bindings: BINDINGS,
            constants: 7,
            extents: |constants, out| extents((TensorType::$name, Layout::$layout), $gated, constants, out),
        };
        &ABI
    }};
}
each_type!(abis);

fn extents((tensor_type, layout): (TensorType, Layout), gated: bool, constants: &[u32], out: &mut [u64]) {
    let [rows, _, n, k, _, stride, _] = array(constants);
    let weights = Resident::new(tensor_type, layout, n.into(), k.into()).map_or(IMPOSSIBLE, |r| r.bytes());
    let y = match gated {
        false => strided(rows, stride, n),
        true if has_gates(tensor_type, n) => strided(rows, stride, n / 2),
        true => IMPOSSIBLE,
    };
    out.copy_from_slice(&[HEADER_BYTES, weights, words(&[rows, k]), y, words(&[k])]);
}

/// The type of the weights, and whether the product is gated.
#[derive(Clone, Copy)]
pub(crate) struct Normed(pub TensorType, pub bool);

impl Spec for Normed {
    fn is_optional(&self) -> bool {
        true
    }

    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(1e-5)
    }

    fn abi(&self, layout: Layout) -> &'static EntryAbi {
        abi(self.0, layout, self.1)
    }

    fn layout(&self, kept: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        Some(kept(self.0))
    }

    fn cases(&self, layout: Layout, random: &mut Random) -> Vec<Case> {
        let Self(tensor_type, is_gated) = *self;
        let is_quantised = tensor_type.block_values() > 1;
        let shapes = [(18_usize, 256), (96, 512), (34, 256), (2, 768), (32, 256), (192, 1024)];
        let mut out = Vec::new();
        for (i, (shape, (n, k))) in ROW_SHAPES.into_iter().zip(shapes).enumerate() {
            let n = match (is_gated, is_quantised) {
                (false, _) => n - 1,
                (true, false) => n,
                (true, true) => n.next_multiple_of(2 * GROUP_ROWS),
            };
            // Types with short blocks also support odd numbers of blocks.
            let k = if tensor_type.block_values() < 256 { k / 8 - k % 3 / 2 * 32 } else { k };
            out.push(case(random, *self, layout, shape, (n, k), i % 2 == 1));
        }
        out
    }

    fn random_case(&self, layout: Layout, random: &mut Random) -> Case {
        let Self(tensor_type, is_gated) = *self;
        let rows_of_weights = match (is_gated, tensor_type.block_values() > 1) {
            (false, _) => 1 + random.below(120),
            (true, false) => 2 * (1 + random.below(60)),
            (true, true) => 2 * GROUP_ROWS * (1 + random.below(4)),
        };
        let blocks = 1 + random.below(12);
        let k = if tensor_type.block_values() < 256 { blocks * 32 } else { blocks.div_ceil(4) * 256 };
        let (shape, accumulate) = (RowShape::random(random, 4), random.below(2) == 0);
        case(random, *self, layout, shape, (rows_of_weights, k), accumulate)
    }
}

fn case(
    random: &mut Random,
    Normed(tensor_type, is_gated): Normed,
    layout: Layout,
    shape: RowShape,
    (n, k): (usize, usize),
    accumulate: bool,
) -> Case {
    let layout = Resident::new(tensor_type, layout, n as u64, k as u64).expect("k is whole blocks");
    let file = random.blocks(tensor_type, n * k);
    let mut resident = vec![0; layout.bytes() as usize];
    layout.pack(0..layout.groups(), &file, &mut resident).expect("sizes are the layout's");
    let mut weights = vec![0.0; n * k];
    dequantise(tensor_type, &file, &mut weights).expect("n rows of k are whole blocks");

    let epsilon = 1e-5_f32;
    let (mut x, norm) = (random.floats(shape.capacity * k, 2.0), random.floats(k, 1.5));
    crate::rms_norm::small_rows(&mut x, k);
    let columns = if is_gated { n / 2 } else { n };
    // In every third shape, y is a part of longer rows.
    let stride = if shape.capacity % 3 == 2 { columns + 21 } else { columns };
    let constants = [shape.capacity, shape.count_word as usize, n, k, usize::from(accumulate), stride];
    let constants = [&constants[..], &[epsilon.to_bits() as usize]].concat();
    let label = format!("{} → {columns} of {stride}, accumulate {accumulate}", shape.label(k));
    let kernel = if is_gated { Kernel::GatedMatMul } else { Kernel::NormMatMul };
    let build = Build::new(kernel(tensor_type), label, &constants);
    let build = build.words(&shape.header()).bytes(resident).floats(&x);

    let before = random.floats((shape.capacity - 1) * stride + columns, 1.0);
    let mut expected = vec![None; before.len()];
    let rows = expected.chunks_mut(stride).zip(before.chunks(stride)).zip(x.chunks_exact(k));
    for ((expected, before), x) in rows.take(shape.rows) {
        let sums = reference(&weights, &crate::rms_norm::reference(x, &norm, epsilon));
        let values = if is_gated { crate::silu_mul::reference(Gate::Silu, &sums) } else { sums };
        for ((expected, value), before) in expected.iter_mut().zip(values).zip(before) {
            *expected = Some(if accumulate { value + f64::from(*before) } else { value });
        }
    }
    let build = if accumulate { build.floats(&before) } else { build.poison(before.len() * 4) };
    build.floats(&norm).expect_f32(3, expected)
}
