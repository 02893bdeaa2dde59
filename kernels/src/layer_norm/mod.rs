//! Layer norm: subtracts the mean of each row and divides the row by its standard deviation. Then multiplies
//! each column by a weight and adds a bias.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: `[rows, width]`, values of any element type |
//! | 1 | weight: f32 `[width]` |
//! | 2 | bias: f32 `[width]` |
//! | 3 | out: f32 `[rows, width]`, written |
//!
//! The constants are the [number](crate::elements::number) of the element type, the rows, the width, and ε
//! (the bits of an f32), which is added to the variance. A launch has one group per row.
//!
//! GPUs square the differences from the mean in f32, and sum the squares in f32. The standard deviation of a
//! row must therefore be at most 1.8 · 10¹⁹ / √width. If a row of finite values exceeds this limit, the
//! result of each column is its bias alone.

use crate::abi::{array, product, words};
use crate::cases::{Build, Case, Random, Stored};
use crate::elements::{self, Operator};
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "layer_norm",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [kind, rows, width, _] = array(constants);
        let (x, column) = (elements::bytes(kind, product(&[rows, width])), words(&[width]));
        extents.copy_from_slice(&[x, column, column, words(&[rows, width])]);
    },
};

/// Returns a grid of one group per row.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[1], 1, 1]
}

/// Computes the layer norm of a row.
pub(crate) fn reference<X: Copy + Into<f64>>(
    row: &[X],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
) -> Vec<f64> {
    let values = || row.iter().map(|x| (*x).into());
    let count = row.len() as f64;
    let mean = values().sum::<f64>() / count;
    let variance = values().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let columns = values().zip(weight.iter().zip(bias));
    columns.map(|(x, (w, b))| (x - mean) * scale * f64::from(*w) + f64::from(*b)).collect()
}

pub(crate) struct LayerNorm;

impl Spec for LayerNorm {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::in_columns(include_str!("layer_norm.wgsl"));
        Some(Operator { grid, c: include_str!("layer_norm.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        [(1, 1, 1e-5), (3, 67, 1e-5), (17, 257, 1e-6), (2, 4096, 1e-5), (5, 2, 1e-3)]
            .into_iter()
            .flat_map(|(rows, width, epsilon)| {
                ElementType::ALL.map(|element| case(random, element, rows, width, epsilon))
            })
            .collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (rows, width) = (1 + random.below(30), 1 + random.below(1500));
        let element = random.element();
        case(random, element, rows, width, 1e-5)
    }
}

fn case(random: &mut Random, element: ElementType, rows: usize, width: usize, epsilon: f32) -> Case {
    let (mean, size) = (random.float(3.0), 0.5 + random.float(0.4));
    let x: Vec<f32> = random.floats(rows * width, size).into_iter().map(|x| x + mean).collect();
    let (weight, bias) = (random.floats(width, 2.0), random.floats(width, 1.0));
    let x = Stored::new(element, &x);
    let wanted =
        x.values.chunks_exact(width).flat_map(|row| reference(row, &weight, &bias, epsilon)).collect();
    let constants = [elements::number(element) as usize, rows, width, epsilon.to_bits() as usize];
    let case = Build::new(Kernel::LayerNorm, format!("{rows} rows of {element} × {width}"), &constants);
    case.bytes(x.bytes).floats(&weight).floats(&bias).expect_elements(3, ElementType::F32, wanted)
}
