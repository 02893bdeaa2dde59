//! ExpertCombine: the weighted sum of the results of each row's experts.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | values: f32 `[rows, used, width]` |
//! | 2 | route: see [`route`](super::route) |
//! | 3 | out: f32 `[rows, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width, and the
//! number of experts per row `used`. A launch has one group per row and per block of columns. The sum runs in the
//! order of the slots.

use super::route::MAX_USED;
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "expert_combine",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [rows, _, width, used] = array(constants);
        let route = if (1..=MAX_USED).contains(&used) { words(&[rows, used, 2]) } else { IMPOSSIBLE };
        extents.copy_from_slice(&[HEADER_BYTES, words(&[rows, used, width]), route, words(&[rows, width])]);
    },
};

pub(crate) struct ExpertCombine;

impl Spec for ExpertCombine {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [(1, 1), (70, 2), (256, 4), (5, 8), (64, 2), (2048, 3)];
        ROW_SHAPES.into_iter().zip(sizes).map(|(shape, size)| case(random, shape, size)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 20);
        let size = (1 + random.below(1500), 1 + random.below(12));
        case(random, shape, size)
    }
}

fn case(random: &mut Random, shape: RowShape, (width, used): (usize, usize)) -> Case {
    let values = random.floats(shape.capacity * used * width, 2.0);
    let weights = random.floats(shape.capacity * used, 1.0);
    let mut expected = vec![None; shape.capacity * width];
    for (row, out) in expected.chunks_exact_mut(width).enumerate().take(shape.rows) {
        for (column, out) in out.iter_mut().enumerate() {
            let product = |slot: usize| {
                let assignment = row * used + slot;
                f64::from(weights[assignment]) * f64::from(values[assignment * width + column])
            };
            *out = Some((0..used).map(product).sum());
        }
    }
    let ids = vec![u32::MAX; used];
    let bits = weights.chunks_exact(used).flat_map(|weights| {
        let weights = weights.iter().map(|weight| weight.to_bits());
        ids.iter().copied().chain(weights).collect::<Vec<u32>>()
    });
    let route: Vec<u32> = bits.collect();
    let constants = [shape.capacity, shape.count_word as usize, width, used];
    let label = format!("{used} experts, {}", shape.label(width));
    let build = Build::new(Kernel::ExpertCombine, label, &constants).words(&shape.header());
    let build = build.floats(&values).words(&route).poison(expected.len() * 4);
    build.expect_f32(3, expected)
}
