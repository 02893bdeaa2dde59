//! Widen: dequantizes a weight matrix to f16, for products on matrix units.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | weights: `[n, k]` in [`Rows16`](crate::layout) |
//! | 1 | out: F16 `[n, k]` in [`RowMajor`](crate::layout), written including its padding |
//!
//! The constants are n and k. A micro-batch with many rows reads the f16 matrix many times, so dequantizing
//! the weights once costs less than unpacking them in each tile of the product. The kernel rounds values to
//! f16. Values beyond the range of f16 saturate.

use crate::abi::{IMPOSSIBLE, array};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, Content, Random};
use crate::half_rows::rounded;
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::{GROUP_ROWS, Layout, PITCH_VALUES, Resident};
use crate::types::each_type;
use ragtag_hal::{Access, EntryAbi};

/// Number of columns per group.
pub const GROUP_COLUMNS: u32 = 512;

macro_rules! abis {
    ($($name:ident)*) => {
        /// Returns the binary interface for weights of `tensor_type`.
        pub fn abi(tensor_type: TensorType) -> &'static EntryAbi {
            match tensor_type {
                $(TensorType::$name => {
                    static ABI: EntryAbi = EntryAbi {
                        name: concat!("widen_", stringify!($name)),
                        bindings: &[Access::Read, Access::Write],
                        constants: 2,
                        extents: |constants, out| extents(TensorType::$name, constants, out),
                    };
                    &ABI
                })*
            }
        }
    };
}
each_type!(abis);

/// Returns the number of bytes in the output for `n` rows of `k` columns, or `u64::MAX` if no such matrix
/// exists.
pub fn out_bytes(n: u32, k: u32) -> u64 {
    Resident::new(TensorType::F16, Layout::RowMajor, n.into(), k.into()).map_or(IMPOSSIBLE, |r| r.bytes())
}

fn extents(tensor_type: TensorType, constants: &[u32], out: &mut [u64]) {
    let [n, k] = array(constants);
    let weights = Resident::new(tensor_type, Layout::Rows16, n.into(), k.into());
    out.copy_from_slice(&[weights.map_or(IMPOSSIBLE, |r| r.bytes()), out_bytes(n, k)]);
}

/// Returns a grid with one group per 16 rows and per [`GROUP_COLUMNS`] columns.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].div_ceil(GROUP_ROWS as u32), constants[1].div_ceil(GROUP_COLUMNS), 1]
}

pub(crate) struct Widen(pub TensorType);

impl Spec for Widen {
    fn exists(&self) -> bool {
        self.0.block_values() > 1
    }

    fn accuracy(&self) -> Accuracy {
        // Ties may be rounded either way.
        Accuracy::fast(1e-4)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi(self.0)
    }

    fn layout(&self, _: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        Some(Layout::Rows16)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (n, k) in [(1, 256), (16, 768), (40, 1024), (33, 1280)] {
            // Types with short blocks also support rows that end within the padding.
            let k = if self.0.block_values() < 256 { k - 32 } else { k };
            out.push(case(random, self.0, n, k));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (n, short) = (1 + random.below(60), random.below(8) * 32);
        let k = 256 * (1 + random.below(4)) - if self.0.block_values() < 256 { short } else { 0 };
        case(random, self.0, n, k)
    }
}

fn case(random: &mut Random, tensor_type: TensorType, n: usize, k: usize) -> Case {
    let file = random.blocks(tensor_type, n * k);
    let layout = Resident::new(tensor_type, Layout::Rows16, n as u64, k as u64).expect("k is whole blocks");
    let mut weights = vec![0; layout.bytes() as usize];
    layout.pack(0..layout.groups(), &file, &mut weights).expect("sizes are the layout's");
    let mut values = vec![0.0; n * k];
    dequantise(tensor_type, &file, &mut values).expect("n rows of k are whole blocks");
    let (pitch, rows) = (k.next_multiple_of(PITCH_VALUES), n.next_multiple_of(GROUP_ROWS));
    let value = |at: usize| {
        let (row, column) = (at / pitch, at % pitch);
        if row < n && column < k { rounded(f64::from(values[row * k + column])).to_f64() } else { 0.0 }
    };
    let expected = (0..rows * pitch).map(|at| Some(value(at))).collect();
    let case = Build::new(Kernel::Widen(tensor_type), format!("{n} × {k}"), &[n, k]);
    let case = case.bytes(weights).poison(rows * pitch * 2);
    case.expect(1, Content::F16(expected)).done()
}
