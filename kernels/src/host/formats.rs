//! The tensor types, as the host kernels read them from their resident layout.
//!
//! A new type is one more dequantiser here; the products and the embedding are written over [`Format`] and
//! [`Quantised`]. It must not know what is done with the weights.

use super::isa::Isa;
use crate::blocks::TensorType;
use crate::layout::{COLUMN_BLOCK, GROUP_ROWS, sections};
use std::marker::PhantomData;

/// A tensor type that can be read as f32, 32 columns of 16 rows at a time.
pub(crate) trait Format: 'static {
    /// The type.
    const TYPE: TensorType;
    /// A group of rows, opened.
    type Group<'a>: Copy;
    /// 32 columns of a group, in registers as far as possible.
    type Block<'a, S: Isa>: Copy;

    /// Opens a group of `columns` columns.
    fn open(group: &[u8], columns: usize) -> Self::Group<'_>;
    /// Reads columns 32·`block` onwards.
    fn block<'a, S: Isa>(s: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S>;
    /// The bytes of a block that matter most to the memory's prefetching.
    fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8];
    /// Columns 4·`quad` … 4·`quad` + 3 of a block.
    fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4];
}

/// A tensor type of integer quanta with scales.
pub(crate) trait Quantised: Format {
    /// Whether quanta reach 128.
    const WIDE: bool;
    /// What is taken from each quantum; zero if there are minima.
    const OFFSET: i32;
    /// Whether the two halves of a block have scales of their own.
    const HALVES: bool;
    /// Whether a minimum is taken from each value.
    const MINIMA: bool;

    /// Reads columns 32·`block` onwards.
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S>;
}

/// 32 columns of 16 rows: value = scale · (quantum − `OFFSET`) − minimum.
#[derive(Clone, Copy)]
pub(crate) struct Quanta<S: Isa> {
    /// Four columns each, unsigned.
    pub quads: [S::B; 8],
    /// Of the first and the last 16 columns.
    pub scales: [S::F; 2],
    /// Zero without `MINIMA`.
    pub minimum: S::F,
}

/// Quanta with what makes values of them: scale · quantum + bias.
#[derive(Clone, Copy)]
pub(crate) struct Biased<S: Isa> {
    quanta: Quanta<S>,
    biases: [S::F; 2],
}

/// The first `N` sections of a group.
#[inline(always)]
fn split<const N: usize>(tensor_type: TensorType, group: &[u8], columns: usize) -> [&[u8]; N] {
    let mut rest = group;
    let mut parts = [&[][..]; N];
    for (part, section) in parts.iter_mut().zip(sections(tensor_type)) {
        (*part, rest) = rest.split_at(columns / section.columns * section.bytes);
    }
    parts
}

/// As arrays of `N` bytes.
#[inline(always)]
fn arrays<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks().0
}

/// The columns of a block, each as `N` bytes of 16 rows.
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
        #[allow(non_camel_case_types)] // the field writes them so
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
                let quanta = Self::quanta(s, group, block);
                let bias = |half: usize| {
                    if Self::MINIMA {
                        s.sub(s.zero(), quanta.minimum)
                    } else {
                        s.mul(quanta.scales[half], s.splat(-Self::OFFSET as f32))
                    }
                };
                Biased { quanta, biases: [bias(0), bias(1)] }
            }
            #[inline(always)]
            fn quad<S: Isa>(s: S, block: &Self::Block<'_, S>, quad: usize) -> [S::F; 4] {
                let (scale, bias) = (block.quanta.scales[quad / 4], block.biases[quad / 4]);
                let [a, b, c, d] = s.bytes_to_f32(block.quanta.quads[quad]);
                [s.fma(a, scale, bias), s.fma(b, scale, bias), s.fma(c, scale, bias), s.fma(d, scale, bias)]
            }
        }
    )*};
}

/// Sections of a type with a scale for each block: `Q` bytes of quanta a block.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a, const Q: usize> {
    quanta: &'a [[u8; Q]],
    scales: &'a [[u8; 32]],
}

impl<'a, const Q: usize> Scaled<'a, Q> {
    #[inline(always)]
    fn new([quanta, scales]: [&'a [u8]; 2]) -> Self {
        Self { quanta: arrays(quanta), scales: arrays(scales) }
    }
}

/// Sections of Q4_K.
#[derive(Clone, Copy)]
pub(crate) struct Q4KGroup<'a> {
    quanta: &'a [[u8; 256]],
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
    Q8_0, Scaled<'a, 512>, quanta, Scaled::new;
    Q4_0, Scaled<'a, 256>, quanta, Scaled::new;
    Q4_K, Q4KGroup<'a>, quanta, |[quanta, subs, tops]: [_; 3]| {
        Q4KGroup { quanta: arrays(quanta), subs: arrays(subs), tops: arrays(tops) }
    };
    Q6_K, Q6KGroup<'a>, lows, |[lows, highs, subs, tops]: [_; 4]| {
        Q6KGroup { lows: arrays(lows), highs: arrays(highs), subs: arrays(subs), tops: arrays(tops) }
    };
    TQ2_0, Scaled<'a, 128>, quanta, Scaled::new;
}

/// Four vectors of nibbles as eight quads.
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

/// The two halves of an array of sub-scales.
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
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S> {
        let v = arrays::<64>(&group.quanta[block]);
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
        Quanta { quads, scales: [s.load_f16(&group.scales[block]); 2], minimum: s.zero() }
    }
}

impl Quantised for Q4_0 {
    const WIDE: bool = false;
    const OFFSET: i32 = 8;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S> {
        let quads = nibbles(s, &group.quanta[block]);
        Quanta { quads, scales: [s.load_f16(&group.scales[block]); 2], minimum: s.zero() }
    }
}

impl Quantised for Q4_K {
    const WIDE: bool = false;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S> {
        let [d, dmin] = halves(&group.tops[block / 8]);
        let [scale, minimum] = halves(&group.subs[block]);
        let scale = s.mul(s.load_f16(d), s.load_u8(scale));
        let minimum = s.mul(s.load_f16(dmin), s.load_u8(minimum));
        Quanta { quads: nibbles(s, &group.quanta[block]), scales: [scale; 2], minimum }
    }
}

impl Quantised for Q6_K {
    const WIDE: bool = false;
    const OFFSET: i32 = 32;
    const HALVES: bool = true;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S> {
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
        Quanta { quads, scales: [s.mul(d, s.load_i8(first)), s.mul(d, s.load_i8(last))], minimum: s.zero() }
    }
}

impl Quantised for TQ2_0 {
    const WIDE: bool = false;
    const OFFSET: i32 = 1;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quanta<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quanta<S> {
        let [a, b] = halves(&group.quanta[block]);
        let (a, b) = (s.load_bytes(a), s.load_bytes(b));
        let quads = [
            s.bits::<0>(a, 3),
            s.bits::<2>(a, 3),
            s.bits::<4>(a, 3),
            s.bits::<6>(a, 3),
            s.bits::<0>(b, 3),
            s.bits::<2>(b, 3),
            s.bits::<4>(b, 3),
            s.bits::<6>(b, 3),
        ];
        Quanta { quads, scales: [s.load_f16(&group.scales[block / 8]); 2], minimum: s.zero() }
    }
}

/// A format as a type parameter of a kernel that has no other use for it.
pub(crate) type Of<W> = PhantomData<W>;
