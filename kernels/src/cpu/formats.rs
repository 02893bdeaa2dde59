//! Readers of tensor types in their resident layouts, for the CPU kernels.
//!
//! A new type needs only a new reader, because the product and embedding kernels access weights only through
//! the traits [`Format`] and [`Quantised`]. The readers do not depend on how kernels use the weights.

pub(crate) use super::isa::Isa;
pub(crate) use crate::blocks::TensorType;
pub(crate) use crate::layout::{COLUMN_BLOCK, GROUP_ROWS};
pub(crate) use crate::variant::Variant;

use crate::layout::sections;
use std::marker::PhantomData;

/// A tensor type that kernels can read as f32, 32 columns of 16 rows at a time.
pub(crate) trait Format: 'static {
    /// Tensor type.
    const TYPE: TensorType;
    /// Sections of a group of 16 rows.
    type Group<'a>: Copy;
    /// 32 columns of a group, held in registers where possible.
    type Block<'a, S: Isa>: Copy;

    /// Splits the bytes of a group with `columns` columns into its sections.
    fn open(group: &[u8], columns: usize) -> Self::Group<'_>;
    /// Reads 32 columns, starting at column 32·`block`.
    fn block<'a, S: Isa>(s: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S>;
    /// Returns the bytes of a block that benefit most from prefetching.
    fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8];
    /// Returns columns 4·`quad` … 4·`quad` + 3 of a block.
    fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4];
    /// Adds the kernels for the type to `out`.
    fn variants<S: Isa>(out: &mut Vec<Variant>);
}

/// A tensor type whose values are integer quants with scales.
pub(crate) trait Quantised: Format {
    /// Number of bits of a quant.
    const BITS: u32;
    /// Offset that readers subtract from each quant, or zero if the type has minima.
    const OFFSET: i32;
    /// Whether the two halves of a block of 32 columns have separate scales.
    const HALVES: bool;
    /// Whether readers subtract a minimum from each value. With `HALVES`, the two halves of a block have
    /// separate minima.
    const MINIMA: bool;

    /// Reads 32 columns of quants, starting at column 32·`block`.
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S>;
}

/// 32 columns of 16 rows: value = scale · (quant − `OFFSET`) − minimum.
#[derive(Clone, Copy)]
pub(crate) struct Quants<S: Isa> {
    /// Unsigned quants. Each entry holds four columns.
    pub quads: [S::B; 8],
    /// Scales of the first 16 and of the last 16 columns.
    pub scales: [S::F; 2],
    /// Minima of the first 16 and of the last 16 columns, or zero if the type has no minima.
    pub minima: [S::F; 2],
}

/// Quants with scales and biases: value = scale · quant + bias.
#[derive(Clone, Copy)]
pub(crate) struct Biased<S: Isa> {
    quants: Quants<S>,
    biases: [S::F; 2],
}

/// Splits a group into sections and returns the first `N` of them.
#[inline(always)]
pub(crate) fn split<const N: usize>(tensor_type: TensorType, group: &[u8], columns: usize) -> [&[u8]; N] {
    let mut rest = group;
    let mut parts = [&[][..]; N];
    for (part, section) in parts.iter_mut().zip(sections(tensor_type)) {
        (*part, rest) = rest.split_at(columns / section.columns * section.bytes);
    }
    parts
}

/// Splits `bytes` into arrays of `N` bytes.
#[inline(always)]
pub(crate) fn arrays<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks().0
}

/// Returns the columns of a group, block by block. A column has `N` bytes for its 16 rows.
#[inline(always)]
pub(crate) fn plain_columns<const N: usize>(group: &[u8], columns: usize) -> &[[[u8; N]; COLUMN_BLOCK]] {
    arrays(&group[..columns * N]).as_chunks().0
}

/// Defines the reader of a type without blocks. The arguments are its name, the number of bytes per value,
/// and the function that loads 16 values.
macro_rules! plain {
    ($name:ident, $bytes:literal, $load:ident) => {
        #[doc = concat!(stringify!($name), " values, column by column.")]
        pub(crate) struct $name;

        const _: () = {
            use $crate::cpu::formats::{
                COLUMN_BLOCK, Format, GROUP_ROWS, Isa, TensorType, Variant, plain_columns,
            };

            impl Format for $name {
                const TYPE: TensorType = TensorType::$name;
                type Group<'a> = &'a [[[u8; $bytes * GROUP_ROWS]; COLUMN_BLOCK]];
                type Block<'a, S: Isa> = &'a [[u8; $bytes * GROUP_ROWS]; COLUMN_BLOCK];

                #[inline(always)]
                fn open(group: &[u8], columns: usize) -> Self::Group<'_> {
                    plain_columns(group, columns)
                }
                #[inline(always)]
                fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8] {
                    group[block].as_flattened()
                }
                #[inline(always)]
                fn block<'a, S: Isa>(_: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S> {
                    &group[block]
                }
                #[inline(always)]
                fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4] {
                    let at = &block.as_chunks::<4>().0[quad];
                    [s.$load(&at[0]), s.$load(&at[1]), s.$load(&at[2]), s.$load(&at[3])]
                }
                fn variants<S: Isa>(out: &mut Vec<Variant>) {
                    $crate::cpu::plain::<S, Self>(out);
                }
            }
        };
    };
}
pub(crate) use plain;

/// Defines the reader of a type with blocks. The arguments are its name, the type of an opened group, the
/// field of the group that benefits most from prefetching, and the function that creates the group from its
/// sections.
macro_rules! quantised {
    ($name:ident, $group:ty, $bytes:ident, $open:expr) => {
        #[doc = concat!(stringify!($name), " blocks.")]
        #[allow(non_camel_case_types)] // Standard names in this field.
        pub(crate) struct $name;

        const _: () = {
            use $crate::cpu::formats::{Biased, Format, Isa, TensorType, Variant, biased, split};

            impl Format for $name {
                const TYPE: TensorType = TensorType::$name;
                type Group<'a> = $group;
                type Block<'a, S: Isa> = Biased<S>;

                #[inline(always)]
                fn open(group: &[u8], columns: usize) -> Self::Group<'_> {
                    $open(split(TensorType::$name, group, columns))
                }
                #[inline(always)]
                fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8] {
                    &group.$bytes[block]
                }
                #[inline(always)]
                fn block<'a, S: Isa>(s: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S> {
                    biased::<S, Self>(s, group, block)
                }
                #[inline(always)]
                fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4] {
                    block.quad(s, quad)
                }
                fn variants<S: Isa>(out: &mut Vec<Variant>) {
                    $crate::cpu::quantised::<S, Self>(out);
                }
            }
        };
    };
}
pub(crate) use quantised;

/// Reads a block and converts offsets and minima to biases.
#[inline(always)]
pub(crate) fn biased<S: Isa, W: Quantised>(s: S, group: W::Group<'_>, block: usize) -> Biased<S> {
    let quants = W::quants(s, group, block);
    let bias = |half: usize| {
        if W::MINIMA {
            s.sub(s.zero(), quants.minima[half])
        } else {
            s.mul(quants.scales[half], s.splat(-W::OFFSET as f32))
        }
    };
    Biased { quants, biases: [bias(0), bias(1)] }
}

impl<S: Isa> Biased<S> {
    /// Returns the values of four columns.
    #[inline(always)]
    pub fn quad(&self, s: S, quad: usize) -> [S::F; 4] {
        let (scale, bias) = (self.quants.scales[quad / 4], self.biases[quad / 4]);
        let [a, b, c, d] = s.bytes_to_f32(self.quants.quads[quad]);
        [s.fma(a, scale, bias), s.fma(b, scale, bias), s.fma(c, scale, bias), s.fma(d, scale, bias)]
    }
}

/// Sections of a type whose scales apply to one block or to 256 columns. The quants of a block occupy `Q`
/// bytes, and the scales occupy `D` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a, const Q: usize, const D: usize> {
    pub quants: &'a [[u8; Q]],
    pub scales: &'a [[u8; D]],
}

impl<'a, const Q: usize, const D: usize> Scaled<'a, Q, D> {
    #[inline(always)]
    pub fn new([quants, scales]: [&'a [u8]; 2]) -> Self {
        Self { quants: arrays(quants), scales: arrays(scales) }
    }
}

/// Sections of Q5_0 and Q5_1. Each block has `D` bytes of scales.
#[derive(Clone, Copy)]
pub(crate) struct Q5Group<'a, const D: usize> {
    pub lows: &'a [[u8; 256]],
    pub highs: &'a [[u8; 64]],
    pub scales: &'a [[u8; D]],
}

impl<'a, const D: usize> Q5Group<'a, D> {
    #[inline(always)]
    pub fn new([lows, highs, scales]: [&'a [u8]; 3]) -> Self {
        Self { lows: arrays(lows), highs: arrays(highs), scales: arrays(scales) }
    }
}

/// Unpacks four vectors of nibbles into eight quads.
#[inline(always)]
pub(crate) fn nibbles<S: Isa>(s: S, vectors: &[u8; 256]) -> [S::B; 8] {
    let v = arrays::<64>(vectors);
    let [a, b, c, d] = [s.load_bytes(&v[0]), s.load_bytes(&v[1]), s.load_bytes(&v[2]), s.load_bytes(&v[3])];
    [
        s.bits::<0>(a, 15),
        s.bits::<0>(b, 15),
        s.bits::<0>(c, 15),
        s.bits::<0>(d, 15),
        s.bits::<4>(a, 15),
        s.bits::<4>(b, 15),
        s.bits::<4>(c, 15),
        s.bits::<4>(d, 15),
    ]
}

/// Unpacks four vectors of nibbles and one vector of fifth bits into eight quads.
#[inline(always)]
pub(crate) fn fifths<S: Isa>(s: S, lows: &[u8; 256], highs: &[u8; 64]) -> [S::B; 8] {
    let (low, high) = (nibbles(s, lows), s.load_bytes(highs));
    [
        s.join(low[0], s.bits::<0>(high, 1)),
        s.join(low[1], s.bits::<1>(high, 1)),
        s.join(low[2], s.bits::<2>(high, 1)),
        s.join(low[3], s.bits::<3>(high, 1)),
        s.join(low[4], s.bits::<4>(high, 1)),
        s.join(low[5], s.bits::<5>(high, 1)),
        s.join(low[6], s.bits::<6>(high, 1)),
        s.join(low[7], s.bits::<7>(high, 1)),
    ]
}

/// Replaces quants, which must be below 16, by the entries of `table` at these indices.
#[inline(always)]
pub(crate) fn look_up<S: Isa>(s: S, mut quads: [S::B; 8], table: &[u8; 16]) -> [S::B; 8] {
    for quad in &mut quads {
        *quad = s.look_up(*quad, table);
    }
    quads
}

/// Unpacks two vectors of four 2-bit fields into eight quads.
#[inline(always)]
pub(crate) fn pairs<S: Isa>(s: S, vectors: &[u8; 128]) -> [S::B; 8] {
    let [a, b] = halves(vectors);
    let (a, b) = (s.load_bytes(a), s.load_bytes(b));
    [
        s.bits::<0>(a, 3),
        s.bits::<2>(a, 3),
        s.bits::<4>(a, 3),
        s.bits::<6>(a, 3),
        s.bits::<0>(b, 3),
        s.bits::<2>(b, 3),
        s.bits::<4>(b, 3),
        s.bits::<6>(b, 3),
    ]
}

/// Reads the scale and offset of a type that adds an offset to each value. Returns the negated offset as the
/// minima, because readers subtract the minimum.
#[inline(always)]
pub(crate) fn scale_and_minimum<S: Isa>(s: S, scales: &[u8; 64]) -> [[S::F; 2]; 2] {
    let [d, m] = halves(scales);
    [[s.load_f16(d); 2], [s.sub(s.zero(), s.load_f16(m)); 2]]
}

/// Reads the scale and minimum of one sub-block of Q4_K or Q5_K.
#[inline(always)]
pub(crate) fn k_scale_and_minimum<S: Isa>(s: S, tops: &[u8; 64], subs: &[u8; 32]) -> [[S::F; 2]; 2] {
    let ([d, dmin], [scale, minimum]) = (halves(tops), halves(subs));
    [[s.mul(s.load_f16(d), s.load_u8(scale)); 2], [s.mul(s.load_f16(dmin), s.load_u8(minimum)); 2]]
}

/// Returns the two halves of an array of sub-scales as references.
#[inline(always)]
pub(crate) fn halves<const N: usize, const H: usize>(bytes: &[u8; N]) -> [&[u8; H]; 2] {
    let parts = arrays::<H>(bytes);
    [&parts[0], &parts[1]]
}

/// Marker type for a kernel that uses a format only as a type parameter.
pub(crate) type Of<W> = PhantomData<W>;
