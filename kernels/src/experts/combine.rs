//! ExpertCombine: the weighted sum of the results of each row's experts, which may have biases.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | values: f32 `[rows, used, width]` |
//! | 2 | route: see [`route`](super::route) |
//! | 3 | biases: f32 `[experts, width]`; not read without biases |
//! | 4 | out: f32 `[rows, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width, the number of
//! experts per row `used`, and the number of experts (0 without biases). A launch has one group per row and per block of
//! columns. The sum runs in the order of the slots.

use super::route::MAX_USED;
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "expert_combine",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 5,
    extents: |constants, extents| {
        let [rows, _, width, used, experts] = array(constants);
        let route = if (1..=MAX_USED).contains(&used) { words(&[rows, used, 2]) } else { IMPOSSIBLE };
        let (values, biases) = (words(&[rows, used, width]), words(&[experts, width]));
        extents.copy_from_slice(&[HEADER_BYTES, values, route, biases, words(&[rows, width])]);
    },
};

pub(crate) struct ExpertCombine;

impl Spec for ExpertCombine {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [(1, 1, 0), (70, 2, 5), (256, 4, 0), (5, 8, 9), (64, 2, 2), (2048, 3, 32)];
        ROW_SHAPES.into_iter().zip(sizes).map(|(shape, size)| case(random, shape, size)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 20);
        let (width, used) = (1 + random.below(1500), 1 + random.below(12));
        let experts = if random.below(2) == 0 { 0 } else { used + random.below(9) };
        case(random, shape, (width, used, experts))
    }
}

fn case(random: &mut Random, shape: RowShape, (width, used, experts): (usize, usize, usize)) -> Case {
    let values = random.floats(shape.capacity * used * width, 2.0);
    let weights = random.floats(shape.capacity * used, 1.0);
    // A binding cannot be empty. Without biases, the kernel does not read it.
    let biases = if experts == 0 { vec![f32::NAN] } else { random.floats(experts * width, 1.0) };
    // Without biases, the kernel does not read the ids.
    let ids: Vec<usize> = (0..shape.capacity * used).map(|_| random.below(experts.max(1))).collect();
    let mut expected = vec![None; shape.capacity * width];
    for (row, out) in expected.chunks_exact_mut(width).enumerate().take(shape.rows) {
        for (column, out) in out.iter_mut().enumerate() {
            let product = |slot: usize| {
                let assignment = row * used + slot;
                let bias = if experts == 0 { 0.0 } else { biases[ids[assignment] * width + column] };
                let value = f64::from(values[assignment * width + column]) + f64::from(bias);
                f64::from(weights[assignment]) * value
            };
            *out = Some((0..used).map(product).sum());
        }
    }
    let rows = ids.chunks_exact(used).zip(weights.chunks_exact(used));
    let route = rows.flat_map(|(ids, weights)| {
        let ids = ids.iter().map(|id| if experts == 0 { u32::MAX } else { *id as u32 });
        ids.chain(weights.iter().map(|weight| weight.to_bits())).collect::<Vec<u32>>()
    });
    let route: Vec<u32> = route.collect();
    let constants = [shape.capacity, shape.count_word as usize, width, used, experts];
    let label = format!("{used} of {experts} experts, {}", shape.label(width));
    let build = Build::new(Kernel::ExpertCombine, label, &constants).words(&shape.header());
    let build = build.floats(&values).words(&route).floats(&biases).poison(expected.len() * 4);
    build.expect_f32(4, expected)
}
