//! ExpertGate: a gated function of the results of each row's experts, with biases.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | gate and up: f32 `[rows, 2, used, width]`; each row holds the gates of all its experts, then their up projections |
//! | 2 | route: see [`route`](super::route) |
//! | 3 | biases: f32 `[2, experts, width]`, those of all gates first; not read without biases |
//! | 4 | out: f32 `[rows, used, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width, the number of
//! experts per row `used`, the number of experts (0 without biases), and those of a [`Rule`]. A launch has one group per
//! row and per block of columns.
//!
//! Let g be a gate and u its up projection, each plus the bias of its expert. With a limit l, g becomes at most l, and u
//! is clamped to −l … l. Then out = g / (1 + e^(−α · g)) · (u + offset). NaN is preserved.

use super::route::MAX_USED;
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::ITEMS;
use ragtag_hal::{Access, EntryAbi};
use serde::Serialize;

/// Rule of a gated function with limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rule {
    /// Factor of the gate in the sigmoid.
    pub alpha: f32,
    /// Largest gate, and largest absolute value of an up projection. Infinity stands for none.
    pub limit: f32,
    /// Number that is added to the up projection.
    pub offset: f32,
}

impl Rule {
    /// Returns the last constants of a launch.
    pub fn constants(&self) -> [u32; 3] {
        [self.alpha, self.limit, self.offset].map(f32::to_bits)
    }

    /// Computes one value in f64.
    fn of(&self, gate: f64, up: f64) -> f64 {
        let [alpha, limit, offset] = [self.alpha, self.limit, self.offset].map(f64::from);
        let (gate, up) = (if gate > limit { limit } else { gate }, up.clamp(-limit, limit));
        gate / (1.0 + (-alpha * gate).exp()) * (up + offset)
    }
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "expert_gate",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 8,
    extents: |constants, extents| {
        let [rows, _, width, used, experts, ..]: [u32; 8] = array(constants);
        let route = if (1..=MAX_USED).contains(&used) { words(&[rows, used, 2]) } else { IMPOSSIBLE };
        let (both, out) = (words(&[rows, 2, used, width]), words(&[rows, used, width]));
        extents.copy_from_slice(&[HEADER_BYTES, both, route, words(&[2, experts, width]), out]);
    },
};

/// Returns a grid of rows × blocks of `4 · ITEMS` columns.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_mul(constants[3]).div_ceil(4 * ITEMS), 1]
}

pub(crate) struct ExpertGate;

impl Spec for ExpertGate {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let gpt_oss = Rule { alpha: 1.702, limit: 7.0, offset: 1.0 };
        let plain = Rule { alpha: 1.0, limit: f32::INFINITY, offset: 0.0 };
        let sizes = [(1, 1, 0), (70, 2, 3), (256, 4, 32), (5, 8, 9), (64, 2, 0), (1030, 3, 5)];
        let rules = [gpt_oss, plain, Rule { limit: 10.0, ..plain }];
        let shapes = ROW_SHAPES.into_iter().zip(sizes).zip(rules.into_iter().cycle());
        shapes.map(|((shape, size), rule)| case(random, shape, size, rule)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 20);
        let (width, used) = (1 + random.below(400), 1 + random.below(12));
        let experts = if random.below(3) == 0 { 0 } else { used + random.below(9) };
        let limit = [f32::INFINITY, 3.0][random.below(2)];
        let rule = Rule { alpha: 1.0 + random.float(0.9), limit, offset: random.float(1.0) };
        case(random, shape, (width, used, experts), rule)
    }
}

fn case(
    random: &mut Random,
    shape: RowShape,
    (width, used, experts): (usize, usize, usize),
    rule: Rule,
) -> Case {
    let mut both = random.floats(shape.capacity * 2 * used * width, 12.0);
    // e^x leaves the range of f32, and NaN must be preserved. The result of −200 is too small for f32, so others decide the
    // relative error.
    if width > 5 {
        both[..5].copy_from_slice(&[-200.0, 200.0, 0.0, f32::NAN, -30.0]);
    }
    // A binding cannot be empty. Without biases, the kernel does not read it.
    let biases = if experts == 0 { vec![f32::NAN] } else { random.floats(2 * experts * width, 2.0) };
    let bias = |part: usize, expert: u32, column: usize| {
        let at = (part * experts + expert as usize) * width + column;
        if experts == 0 { 0.0 } else { f64::from(biases[at]) }
    };
    let rows = 0..shape.capacity;
    let ids = rows.map(|_| (0..used).map(|_| random.below(experts.max(1)) as u32).collect());
    let ids: Vec<Vec<u32>> = ids.collect();
    let value = |at: usize| {
        let (row, slot, column) = (at / (used * width), at / width % used, at % width);
        let id = ids[row][slot];
        let part = |part: usize| {
            f64::from(both[((row * 2 + part) * used + slot) * width + column]) + bias(part, id, column)
        };
        (row < shape.rows).then(|| rule.of(part(0), part(1)))
    };
    let expected: Vec<_> = (0..shape.capacity * used * width).map(value).collect();
    // The kernel does not read weights.
    let route = ids.iter().flat_map(|ids| [&ids[..], &vec![u32::MAX; used]].concat()).collect::<Vec<_>>();
    let constants = [shape.capacity, shape.count_word as usize, width, used, experts];
    let constants = [&constants[..], &rule.constants().map(|bits| bits as usize)].concat();
    let label = format!("{used} of {experts} experts, {rule:?}, {}", shape.label(width));
    let build = Build::new(Kernel::ExpertGate, label, &constants).words(&shape.header()).floats(&both);
    // The words are 7, so that an unwritten value is not the NaN that the first row needs.
    let build = build.words(&route).floats(&biases).words(&vec![7; expected.len()]);
    build.expect_f32(4, expected)
}
