//! Second launch of split attention with sinks: combines the partial results of [`partial`](super::partial).
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | [partials](super::partial) |
//! | 2 | sinks: f32 `[heads]` |
//! | 3 | out: f32 `[rows, heads · head dimension]`, written |
//!
//! The constants are those of [`merge`](super::merge). A launch has one group per row and per block of columns.
//!
//! A sink is a score without a value: it adds e^sink to the sum of the softmax. With the numbers of `merge`, let M be the
//! maximum of m over all splits, and of the sink. Then out = Σ w v / (Σ w + e^(sink − M)). Splits with s = 0 are ignored.
//! If s = 0 for all splits of a head, the output of the head is zero.

use super::merge::{partials, reference};
use super::partial::partials_bytes;
use crate::abi::{HEADER_BYTES, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::params::ROWS;
use crate::rows::ITEMS;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "attention_merge_sinks",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 5,
    extents: |constants, extents| {
        let [rows, _, heads, head_dim, splits] = array(constants);
        let partials = partials_bytes(rows, heads, head_dim, splits);
        let out = words(&[rows, heads, head_dim]);
        extents.copy_from_slice(&[HEADER_BYTES, partials, words(&[heads]), out]);
    },
};

/// Returns a grid of rows × blocks of columns.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_mul(constants[3]).div_ceil(ITEMS), 1]
}

pub(crate) struct AttentionMergeSinks;

impl Spec for AttentionMergeSinks {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [[1, 64, 1], [8, 128, 33], [16, 20, 2], [4, 48, 64], [32, 2, 3], [5, 96, 7]];
        let shapes = ROW_SHAPES.into_iter().zip(sizes);
        let mut out: Vec<Case> = shapes.map(|(shape, sizes)| case(random, shape, sizes)).collect();
        out.push(not_finite());
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 8);
        let sizes = [1 + random.below(9), 1 + random.below(160), 1 + random.below(64)];
        case(random, shape, sizes)
    }
}

/// Builds a case in which the partial result of a split of the first head is NaN, the second head has one split, and the
/// third has none. The sink of the second head is far above its score, and that of the fourth far below.
fn not_finite() -> Case {
    let (head_dim, none) = (8, [0.0; 2]);
    let sums = [[1.0, 2.0], [f32::NAN; 2], none, [3.0, 1.0], none, none, [3.0, 1.0], none];
    let means = [0.5, f32::NAN, f32::NAN, 2.0, f32::NAN, f32::NAN, 2.0, f32::NAN].map(|mean| [mean; 8]);
    let constants = [1, ROWS as usize, 4, head_dim, 2];
    let build = Build::new(Kernel::AttentionMergeSinks, "not finite".into(), &constants);
    let build = build.words(&[1, 0, 0, 0]).floats(&[means.as_flattened(), sums.as_flattened()].concat());
    let build = build.floats(&[0.0, 200.0, -1.0, -200.0]).floats(&vec![7.0; 4 * head_dim]);
    let expected = [f64::NAN, 0.0, 0.0, 2.0].map(|value| [Some(value); 8]);
    build.expect(3, crate::cases::Content::SomeSame(expected.as_flattened().to_vec())).done()
}

fn case(random: &mut Random, shape: RowShape, sizes: [usize; 3]) -> Case {
    let [heads, head_dim, splits] = sizes;
    let (width, sinks) = (heads * head_dim, random.floats(heads, 12.0));
    let (means, sums) = partials(random, shape.capacity, sizes);
    let heads_of = means.chunks_exact(splits * head_dim).zip(sums.chunks_exact(splits));
    let of_head = |(i, (means, sums)): (usize, (&[f32], &[[f32; 2]]))| {
        reference(means, sums, head_dim, sinks[i % heads].into())
    };
    let values = heads_of.enumerate().flat_map(of_head).enumerate();
    let expected = values.map(|(i, value)| (i / width < shape.rows).then_some(value)).collect::<Vec<_>>();
    let constants = [shape.capacity, shape.count_word as usize, heads, head_dim, splits];
    let label = format!("{}, {heads} heads, {splits} splits", shape.label(width));
    let build = Build::new(Kernel::AttentionMergeSinks, label, &constants).words(&shape.header());
    let build = build.floats(&[&means[..], sums.as_flattened()].concat()).floats(&sinks);
    build.poison(expected.len() * 4).expect_f32(3, expected)
}
