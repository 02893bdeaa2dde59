//! Readers of the tensor types in their resident layouts, for the CPU kernels.
//!
//! A new type needs only one more reader here, because products and embedding use [`Format`] and
//! [`Quantised`]. The readers do not depend on the use of the weights.

use super::isa::Isa;
use crate::blocks::TensorType;
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, sections};
use std::marker::PhantomData;

/// A tensor type that can be read as f32, 32 columns of 16 rows at a time.
pub(crate) trait Format: 'static {
    /// Tensor type.
    const TYPE: TensorType;
    /// An opened group of rows.
    type Group<'a>: Copy;
    /// 32 columns of a group, in registers where possible.
    type Block<'a, S: Isa>: Copy;

    /// Opens a group of `columns` columns.
    fn open(group: &[u8], columns: usize) -> Self::Group<'_>;
    /// Reads 32 columns, starting at column 32·`block`.
    fn block<'a, S: Isa>(s: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S>;
    /// Returns the bytes of a block for which prefetching matters most.
    fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8];
    /// Returns columns 4·`quad` … 4·`quad` + 3 of a block.
    fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4];
}

/// A tensor type of integer quants with scales.
pub(crate) trait Quantised: Format {
    /// Whether quants reach 128.
    const WIDE: bool;
    /// Value that is subtracted from each quant. Zero if the type has minima.
    const OFFSET: i32;
    /// Whether the two halves of a block have separate scales.
    const HALVES: bool;
    /// Whether a minimum is subtracted from each value.
    const MINIMA: bool;

    /// Reads 32 columns, starting at column 32·`block`.
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S>;
}

/// 32 columns of 16 rows: value = scale · (quant − `OFFSET`) − minimum.
#[derive(Clone, Copy)]
pub(crate) struct Quants<S: Isa> {
    /// Unsigned quants, four columns per entry.
    pub quads: [S::B; 8],
    /// Scales of the first and the last 16 columns.
    pub scales: [S::F; 2],
    /// Minimum of the block. Zero without `MINIMA`.
    pub minimum: S::F,
}

/// Quants with scale and bias: value = scale · quant + bias.
#[derive(Clone, Copy)]
pub(crate) struct Biased<S: Isa> {
    quants: Quants<S>,
    biases: [S::F; 2],
}

/// Returns the first `N` sections of a group.
#[inline(always)]
fn split<const N: usize>(tensor_type: TensorType, group: &[u8], columns: usize) -> [&[u8]; N] {
    let mut rest = group;
    let mut parts = [&[][..]; N];
    for (part, section) in parts.iter_mut().zip(sections(tensor_type)) {
        (*part, rest) = rest.split_at(columns / section.columns * section.bytes);
    }
    parts
}

/// Splits bytes into arrays of `N`.
#[inline(always)]
fn arrays<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks().0
}

/// Returns the columns of a block. A column has `N` bytes for its 16 rows.
#[inline(always)]
fn plain_columns<const N: usize>(group: &[u8], columns: usize) -> &[[[u8; N]; COLUMN_BLOCK]] {
    arrays(&group[..columns * N]).as_chunks().0
}

macro_rules! plain {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {$(
        #[doc = concat!(stringify!($name), " values, column by column.")]
        pub(crate) struct $name;

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
        }
    )*};
}

plain! {
    F32, 4, load_f32;
    F16, 2, load_f16;
    BF16, 2, load_bf16;
}

macro_rules! quantised {
    ($($name:ident, $group:ty, $bytes:ident, $open:expr;)*) => {$(
        #[doc = concat!(stringify!($name), " blocks.")]
        #[allow(non_camel_case_types)] // The field's spelling.
        pub(crate) struct $name;

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
                let quants = Self::quants(s, group, block);
                let bias = |half: usize| {
                    if Self::MINIMA {
                        s.sub(s.zero(), quants.minimum)
                    } else {
                        s.mul(quants.scales[half], s.splat(-Self::OFFSET as f32))
                    }
                };
                Biased { quants, biases: [bias(0), bias(1)] }
            }
            #[inline(always)]
            fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4] {
                let (scale, bias) = (block.quants.scales[quad / 4], block.biases[quad / 4]);
                let [a, b, c, d] = s.bytes_to_f32(block.quants.quads[quad]);
                [s.fma(a, scale, bias), s.fma(b, scale, bias), s.fma(c, scale, bias), s.fma(d, scale, bias)]
            }
        }
    )*};
}

/// Sections of a type with scales per block or per 256 columns, with `Q` bytes of quants and `D` bytes of
/// scales.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a, const Q: usize, const D: usize> {
    quants: &'a [[u8; Q]],
    scales: &'a [[u8; D]],
}

impl<'a, const Q: usize, const D: usize> Scaled<'a, Q, D> {
    #[inline(always)]
    fn new([quants, scales]: [&'a [u8]; 2]) -> Self {
        Self { quants: arrays(quants), scales: arrays(scales) }
    }
}

/// Sections of Q5_0 and Q5_1: `D` bytes of scales per block.
#[derive(Clone, Copy)]
pub(crate) struct Q5Group<'a, const D: usize> {
    lows: &'a [[u8; 256]],
    highs: &'a [[u8; 64]],
    scales: &'a [[u8; D]],
}

impl<'a, const D: usize> Q5Group<'a, D> {
    #[inline(always)]
    fn new([lows, highs, scales]: [&'a [u8]; 3]) -> Self {
        Self { lows: arrays(lows), highs: arrays(highs), scales: arrays(scales) }
    }
}

/// Sections of Q4_K.
#[derive(Clone, Copy)]
pub(crate) struct Q4KGroup<'a> {
    quants: &'a [[u8; 256]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 64]],
}

/// Sections of Q5_K.
#[derive(Clone, Copy)]
pub(crate) struct Q5KGroup<'a> {
    lows: &'a [[u8; 256]],
    highs: &'a [[u8; 64]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 64]],
}

/// Sections of Q6_K.
#[derive(Clone, Copy)]
pub(crate) struct Q6KGroup<'a> {
    lows: &'a [[u8; 256]],
    highs: &'a [[u8; 128]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 32]],
}

quantised! {
    Q8_0, Scaled<'a, 512, 32>, quants, Scaled::new;
    Q4_0, Scaled<'a, 256, 32>, quants, Scaled::new;
    Q4_1, Scaled<'a, 256, 64>, quants, Scaled::new;
    Q5_0, Q5Group<'a, 32>, lows, Q5Group::new;
    Q5_1, Q5Group<'a, 64>, lows, Q5Group::new;
    Q4_K, Q4KGroup<'a>, quants, |[quants, subs, tops]: [_; 3]| {
        Q4KGroup { quants: arrays(quants), subs: arrays(subs), tops: arrays(tops) }
    };
    Q5_K, Q5KGroup<'a>, lows, |[lows, highs, subs, tops]: [_; 4]| {
        Q5KGroup { lows: arrays(lows), highs: arrays(highs), subs: arrays(subs), tops: arrays(tops) }
    };
    Q6_K, Q6KGroup<'a>, lows, |[lows, highs, subs, tops]: [_; 4]| {
        Q6KGroup { lows: arrays(lows), highs: arrays(highs), subs: arrays(subs), tops: arrays(tops) }
    };
    TQ1_0, Scaled<'a, 128, 32>, quants, Scaled::new;
    TQ2_0, Scaled<'a, 128, 32>, quants, Scaled::new;
}

/// Unpacks four vectors of nibbles to eight quads.
#[inline(always)]
fn nibbles<S: Isa>(s: S, vectors: &[u8; 256]) -> [S::B; 8] {
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

/// Unpacks four vectors of nibbles and one of fifth bits to eight quads.
#[inline(always)]
fn fifths<S: Isa>(s: S, lows: &[u8; 256], highs: &[u8; 64]) -> [S::B; 8] {
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

/// Unpacks two vectors of four 2-bit fields to eight quads.
#[inline(always)]
fn pairs<S: Isa>(s: S, vectors: &[u8; 128]) -> [S::B; 8] {
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

/// Reads the scale and minimum of a type that stores an offset to add. The minimum is subtracted, so it is
/// the negative offset.
#[inline(always)]
fn scale_and_minimum<S: Isa>(s: S, scales: &[u8; 64]) -> ([S::F; 2], S::F) {
    let [d, m] = halves(scales);
    ([s.load_f16(d); 2], s.sub(s.zero(), s.load_f16(m)))
}

/// Reads the scale and minimum of a sub-block of Q4_K or Q5_K.
#[inline(always)]
fn k_scale_and_minimum<S: Isa>(s: S, tops: &[u8; 64], subs: &[u8; 32]) -> ([S::F; 2], S::F) {
    let ([d, dmin], [scale, minimum]) = (halves(tops), halves(subs));
    ([s.mul(s.load_f16(d), s.load_u8(scale)); 2], s.mul(s.load_f16(dmin), s.load_u8(minimum)))
}

/// Returns the two halves of an array of sub-scales.
#[inline(always)]
fn halves<const N: usize, const H: usize>(bytes: &[u8; N]) -> [&[u8; H]; 2] {
    let parts = arrays::<H>(bytes);
    [&parts[0], &parts[1]]
}

impl Quantised for Q8_0 {
    const WIDE: bool = true;
    const OFFSET: i32 = 128;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let v = arrays::<64>(&group.quants[block]);
        let quads = [
            s.load_bytes(&v[0]),
            s.load_bytes(&v[1]),
            s.load_bytes(&v[2]),
            s.load_bytes(&v[3]),
            s.load_bytes(&v[4]),
            s.load_bytes(&v[5]),
            s.load_bytes(&v[6]),
            s.load_bytes(&v[7]),
        ];
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minimum: s.zero() }
    }
}

impl Quantised for Q4_0 {
    const WIDE: bool = false;
    const OFFSET: i32 = 8;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = nibbles(s, &group.quants[block]);
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minimum: s.zero() }
    }
}

impl Quantised for Q4_1 {
    const WIDE: bool = false;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let (scales, minimum) = scale_and_minimum(s, &group.scales[block]);
        Quants { quads: nibbles(s, &group.quants[block]), scales, minimum }
    }
}

impl Quantised for Q5_0 {
    const WIDE: bool = false;
    const OFFSET: i32 = 16;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = fifths(s, &group.lows[block], &group.highs[block]);
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minimum: s.zero() }
    }
}

impl Quantised for Q5_1 {
    const WIDE: bool = false;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let (scales, minimum) = scale_and_minimum(s, &group.scales[block]);
        Quants { quads: fifths(s, &group.lows[block], &group.highs[block]), scales, minimum }
    }
}

impl Quantised for Q4_K {
    const WIDE: bool = false;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let (scales, minimum) = k_scale_and_minimum(s, &group.tops[block / 8], &group.subs[block]);
        Quants { quads: nibbles(s, &group.quants[block]), scales, minimum }
    }
}

impl Quantised for Q5_K {
    const WIDE: bool = false;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let (scales, minimum) = k_scale_and_minimum(s, &group.tops[block / 8], &group.subs[block]);
        Quants { quads: fifths(s, &group.lows[block], &group.highs[block]), scales, minimum }
    }
}

impl Quantised for Q6_K {
    const WIDE: bool = false;
    const OFFSET: i32 = 32;
    const HALVES: bool = true;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let low = nibbles(s, &group.lows[block]);
        let [even, odd] = halves(&group.highs[block]);
        let (even, odd) = (s.load_bytes(even), s.load_bytes(odd));
        let quads = [
            s.join(low[0], s.bits::<0>(even, 3)),
            s.join(low[1], s.bits::<0>(odd, 3)),
            s.join(low[2], s.bits::<2>(even, 3)),
            s.join(low[3], s.bits::<2>(odd, 3)),
            s.join(low[4], s.bits::<4>(even, 3)),
            s.join(low[5], s.bits::<4>(odd, 3)),
            s.join(low[6], s.bits::<6>(even, 3)),
            s.join(low[7], s.bits::<6>(odd, 3)),
        ];
        let d = s.load_f16(&group.tops[block / 8]);
        let [first, last] = halves(&group.subs[block]);
        Quants { quads, scales: [s.mul(d, s.load_i8(first)), s.mul(d, s.load_i8(last))], minimum: s.zero() }
    }
}

macro_rules! ternary {
    ($($name:ident),*) => {$(
        impl Quantised for $name {
            const WIDE: bool = false;
            const OFFSET: i32 = 1;
            const HALVES: bool = false;
            const MINIMA: bool = false;

            #[inline(always)]
            fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
                let quads = pairs(s, &group.quants[block]);
                Quants { quads, scales: [s.load_f16(&group.scales[block / 8]); 2], minimum: s.zero() }
            }
        }
    )*};
}

ternary!(TQ1_0, TQ2_0); // Both have the same layout.

/// Marker type for a kernel that uses a format only as a type parameter.
pub(crate) type Of<W> = PhantomData<W>;
