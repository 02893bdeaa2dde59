//! f(gate) · up, with a function f of [`Gate`]. The output is f32, int8 or f16.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | gate and up: f32 `[rows, 2 · width]`; each row holds the gate values, then the up values |
//! | 2 | out: f32 `[rows, width]`, [int8](crate::quantize) or [f16 activations](crate::half_rows), written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width,
//! and the function. A launch has one group per row.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, abi_for, array, words};
use crate::cases::{Build, Case, Random, RowShape, wide_rows};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::{RowKernel, part_grid};
use crate::unary::Function;
use crate::wgsl::programs::plain;
use crate::wgsl::{HALF_ROWS, INT8_ROWS};
use ragtag_hal::{Access, EntryAbi};
use serde::Serialize;

/// Function of the gate. The kernel receives its discriminant as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Gate {
    /// x / (1 + e⁻ˣ).
    Silu,
    /// The common tanh approximation of GELU: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
    GeluTanh,
    /// The square of x, or zero if x is negative.
    SquaredRelu,
}

impl Gate {
    /// All functions.
    pub const ALL: [Gate; 3] = [Gate::Silu, Gate::GeluTanh, Gate::SquaredRelu];

    fn of(self, x: f64) -> f64 {
        match self {
            Gate::Silu => Function::Silu.of(x),
            Gate::GeluTanh => Function::GeluTanh.of(x),
            Gate::SquaredRelu => Function::SquaredRelu.of(x),
        }
    }
}

fn extents(activations: Activations, constants: &[u32], out: &mut [u64]) {
    let [rows, _, width, gate] = array(constants);
    if gate as usize >= Gate::ALL.len() {
        return out.fill(IMPOSSIBLE);
    }
    out.copy_from_slice(&[HEADER_BYTES, words(&[rows, 2, width]), activations.rows_extent(rows, width)]);
}

/// Computes one row in f64.
pub(crate) fn reference(function: Gate, gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    let one = |(g, u): (&f64, &f64)| function.of(*g) * u;
    gate.iter().zip(up).map(one).collect()
}

const SILU: &str = include_str!("silu.wgsl");
const PACKED: &str = include_str!("silu_mul_packed.wgsl");

pub(crate) struct SiluMul(pub Activations);

impl Spec for SiluMul {
    fn accuracy(&self) -> Accuracy {
        match self.0 {
            Activations::F32 => Accuracy::exact(1e-6),
            // Many values are subnormal in f16.
            Activations::F16 => Accuracy::fast(1e-3),
            // The values of a block differ in size.
            Activations::Int8 => Accuracy::fast(2e-2),
        }
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(Activations, self.0, "silu_mul", &[Access::Read, Access::Read, Access::Write], 4, extents)
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = match self.0 {
            Activations::F32 => plain!("silu_mul", [SILU, include_str!("silu_mul.wgsl")]),
            Activations::Int8 => plain!("silu_mul", [INT8_ROWS, SILU, PACKED]),
            Activations::F16 => plain!("silu_mul", [HALF_ROWS, SILU, PACKED]),
        };
        Some(RowKernel::new(part_grid, include_str!("silu_mul.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = wide_rows(self.0).zip(Gate::ALL.into_iter().cycle());
        shapes.map(|((shape, width), gate)| case(random, self.0, shape, width, gate)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let blocks = 1 + random.below(30);
        let width = if self.0 == Activations::F32 { 2 + random.below(900) } else { blocks * 32 };
        let shape = RowShape::random(random, 40);
        let gate = Gate::ALL[random.below(3)];
        case(random, self.0, shape, width, gate)
    }
}

fn case(random: &mut Random, activations: Activations, shape: RowShape, width: usize, gate: Gate) -> Case {
    let row = |random: &mut Random| [random.floats(width, 8.0), random.floats(width, 1.5)].concat();
    let mut gate_up: Vec<f32> = (0..shape.capacity).flat_map(|_| row(random)).collect();
    gate_up[..4].copy_from_slice(&[-200.0, 200.0, 0.0, -30.0]); // e^x leaves the range of f32.
    let values: Vec<f64> = gate_up.iter().map(|v| f64::from(*v)).collect();
    let expected: Vec<f64> = values.chunks_exact(2 * width).flat_map(|row| reference(gate, row)).collect();
    let constants = [shape.capacity, shape.count_word as usize, width, gate as usize];
    let label = format!("{gate:?}, {}", shape.label(width));
    let case = Build::new(Kernel::SiluMul(activations), label, &constants);
    let case = case.words(&shape.header()).floats(&gate_up);
    case.expect_rows(2, activations, &expected, shape, width)
}
