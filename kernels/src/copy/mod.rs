//! Copy: reads elements at strided positions and converts their type. This operator implements casts,
//! transpositions, slices and broadcasts.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: elements of type `from`; the kernel reads only those that sizes and strides select |
//! | 1 | out: elements of type `to`, contiguous; their number is the product of the sizes; written |
//!
//! The constants are `from` and `to` (the [numbers](crate::elements::number) of these types), `first`, 6
//! sizes, and 6 strides. Sizes and strides start with the outermost dimension. The first element that the
//! kernel reads is element `first` of x. Strides are in elements and may be zero. There are fewer than 2^32
//! elements.
//!
//! The kernel rounds to nearest, ties to even. Values beyond the range of the output type become infinite,
//! and NaN is preserved. If both types are equal, the kernel copies the bits. [`crate::elements`] defines the
//! padding after an odd number of 16-bit elements.

use crate::abi::{array, product};
use crate::cases::{Build, Case, Content, Random};
use crate::elements::{self, Operator, RANK, in_a_word};
use crate::kernel::{ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "copy_elements",
    bindings: &[Access::Read, Access::Write],
    constants: 3 + 2 * RANK,
    extents: |constants, extents| {
        let [from, to, first, shape @ ..] = array::<{ 3 + 2 * RANK }>(constants);
        let (sizes, strides) = shape.split_at(RANK);
        let met = match elements::span(sizes, strides) {
            0 => 0,
            span => span.saturating_add(u64::from(first)),
        };
        extents.copy_from_slice(&[elements::bytes(from, met), elements::bytes(to, product(sizes))]);
    },
};

/// Returns a grid with one work item per output word.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let count = product(&constants[3..3 + RANK]);
    elements::grid(count.div_ceil(in_a_word(constants[1]).unwrap_or(1).into()) as u32)
}

/// Returns the bits of random elements. Some are values of widely varying magnitude. Others are random bit
/// patterns, which include subnormals, infinities and NaNs.
pub(crate) fn random_elements(random: &mut Random, of: ElementType, count: usize) -> Vec<u32> {
    let bits = |i: usize| {
        let value = random.float(1.0) * 10_f32.powi(random.below(14) as i32 - 8);
        let any = (random.below(1 << 16) << 16 | random.below(1 << 16)) as u32;
        match (of, i % 3) {
            (ElementType::F32, 0) => any,
            (_, 0) => any & 0xffff,
            _ => elements::convert(0, elements::number(of), value.to_bits()),
        }
    };
    (0..count).map(bits).collect()
}

/// Returns `values` (sizes or strides), padded to [`RANK`] dimensions with leading copies of `front`.
pub(crate) fn padded(values: &[u32], front: u32) -> impl Iterator<Item = usize> {
    let missing = RANK - values.len();
    std::iter::repeat_n(front, missing).chain(values.iter().copied()).map(|v| v as usize)
}

/// Returns the complement of each word in `wanted`. Every word of the result thus differs from the wanted
/// word.
pub(crate) fn poison(wanted: &[u32]) -> Vec<u32> {
    wanted.iter().map(|word| !word).collect()
}

pub(crate) struct Copy;

impl Spec for Copy {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::elements(&[include_str!("copy.wgsl")]);
        Some(Operator { grid, c: include_str!("copy.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        use ElementType::{BF16, F16, F32};
        let shapes: [(_, _, u32, &[u32], &[u32]); 12] = [
            (F32, F32, 0, &[1], &[1]),
            (F32, F16, 0, &[1009], &[1]),
            (F32, BF16, 3, &[1000], &[1]),
            (F16, F32, 1, &[513], &[1]),
            (BF16, F32, 0, &[257], &[1]),
            (F16, BF16, 0, &[300], &[1]),
            (BF16, F16, 0, &[301], &[1]),
            (F16, F16, 0, &[31, 37], &[1, 31]),
            (BF16, BF16, 5, &[3, 1, 5], &[20, 9, 3]),
            (F32, F32, 7, &[65, 33], &[1, 66]),
            (F32, F32, 0, &[3, 5, 7, 2], &[7, 0, 1, 21]),
            (F32, F16, 2, &[2, 3, 1, 5, 3, 7], &[1, 2, 0, 6, 30, 90]),
        ];
        shapes.map(|(from, to, first, sizes, strides)| case(random, from, to, first, sizes, strides)).into()
    }

    /// Returns a random copy with one to six dimensions in random order. Some of these dimensions are
    /// broadcast.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let mut element = || ElementType::ALL[random.below(3)];
        let (from, to) = (element(), element());
        let sizes: Vec<u32> = (0..1 + random.below(RANK)).map(|_| 1 + random.below(9) as u32).collect();
        let (mut strides, mut stride) = (vec![0; sizes.len()], 1);
        for dimension in random.shuffled(sizes.len()) {
            let dimension = dimension as usize;
            if random.below(5) > 0 {
                strides[dimension] = stride;
                stride *= sizes[dimension] + random.below(2) as u32;
            }
        }
        let first = random.below(4) as u32;
        case(random, from, to, first, &sizes, &strides)
    }
}

fn case(
    random: &mut Random,
    from: ElementType,
    to: ElementType,
    first: u32,
    sizes: &[u32],
    strides: &[u32],
) -> Case {
    let span = elements::span(sizes, strides) as usize + first as usize;
    let x = random_elements(random, from, span);
    let count = sizes.iter().product::<u32>() as usize;
    let [from_number, to_number] = [from, to].map(elements::number);
    let walk = (0..count).map(|i| first as usize + elements::place(i, sizes, strides));
    let wanted: Vec<u32> = walk.map(|at| elements::convert(from_number, to_number, x[at])).collect();
    let wanted = elements::pack(to_number, &wanted);
    let mut constants = vec![from_number as usize, to_number as usize, first as usize];
    constants.extend(padded(sizes, 1).chain(padded(strides, 0)));
    let label = format!("{from} to {to}, {sizes:?} by {strides:?} from {first} on");
    let case = Build::new(Kernel::Copy, label, &constants).words(&elements::pack(from_number, &x));
    let content = Content::Words(wanted.iter().copied().map(Some).collect());
    case.words(&poison(&wanted)).expect(1, content).done()
}
