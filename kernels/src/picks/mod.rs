//! Picks: the best logits of each row, from which most samplers draw. [`peaks`] finds those of the parts of a row, and
//! this kernel merges them.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | parts: `[rows, parts]` records |
//! | 2 | out: `[rows]` records, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the number of
//! parts per row. A launch has one group per row.
//!
//! A record consists of [`RECORD_WORDS`] words: [`BEST`] values in descending order (f32), their ids (u32), the
//! largest value (f32), the sum of exp(value − largest) over all candidates of the row (f32), and the key (f32) and the
//! id of the drawn candidate: see [`noise`]. NaN and −∞ are no candidates. A place without a candidate has the value −∞ and the id [`NO_ID`]. +∞ counts as the largest finite
//! number. Among equal values, the lowest id comes first. +0 and −0 are equal, and the record has +0. If nothing is drawn,
//! the key is −∞ and the id [`NO_ID`].

pub mod noise;
pub mod peaks;

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::add::grid;
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::params::USED_WORDS;
use crate::rows::RowKernel;
use crate::wgsl::programs::{ORDER, in_groups};
use noise::Draw;
use ragtag_hal::{Access, EntryAbi};

/// Number of candidates in a record.
pub const BEST: usize = 64;
/// Number of words in a record.
pub const RECORD_WORDS: usize = 2 * BEST + 4;
/// Index of the word with the id of the drawn candidate.
pub const DRAWN: usize = 2 * BEST + 3;
/// Number of bytes in a record.
pub const RECORD_BYTES: u64 = 4 * RECORD_WORDS as u64;
/// Id of a place without a candidate.
pub const NO_ID: u32 = u32::MAX;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "picks",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, _, parts] = array(constants);
        let records = if parts == 0 { IMPOSSIBLE } else { records(&[rows, parts]) };
        extents.copy_from_slice(&[HEADER_BYTES, records, self::records(&[rows])]);
    },
};

/// Returns the number of bytes in an array of records with these `dimensions`.
pub fn records(dimensions: &[u32]) -> u64 {
    words(dimensions).saturating_mul(RECORD_WORDS as u64)
}

/// Reference record.
#[derive(Clone)]
pub(super) struct Record {
    /// The best candidates with their ids, in order.
    best: Vec<(f32, u32)>,
    /// Sum of exp(value − largest) over all candidates.
    sum: f64,
    /// Key and id of the drawn candidate.
    drawn: Option<(f64, u32)>,
}

/// Keys of a reference that differ by less are not compared.
const MARGIN: f64 = 1e-3;

/// Returns a random draw for each row, or none. The largest keys of the row and of its parts are not close to the next ones.
pub(super) fn draws(random: &mut Random, rows: &[Vec<f32>], part: usize) -> Vec<Draw> {
    let draw = |row: &Vec<f32>| loop {
        let seed = [(); 2].map(|()| random.below(1 << 32) as u32);
        let draw = Draw { seed, scale: [0.0, 0.5, 1.0, 2.0][random.below(4)] };
        let is_clear = |(first, values): (u32, &[f32])| {
            draw.exact(values, first).is_none_or(|(_, _, margin)| margin > MARGIN)
        };
        if is_clear((0, row)) && (0..).step_by(part).zip(row.chunks(part)).all(is_clear) {
            return draw;
        }
    };
    rows.iter().map(draw).collect()
}

/// Returns the header of the parameter block and, right behind it, the draws of the rows in use.
pub(super) fn params(shape: &RowShape, draws: &[Draw]) -> Vec<u32> {
    let mut header = shape.header();
    header[USED_WORDS as usize] = (header.len() + Draw::WORDS * shape.rows) as u32;
    header.into_iter().chain(draws[..shape.rows].iter().flat_map(Draw::words)).collect()
}

impl Record {
    /// Sorts all candidates of `x`, whose first id is `first`.
    pub(super) fn new(x: &[f32], first: u32, draw: &Draw) -> Self {
        let finite = |x: &f32| if *x == 0.0 { 0.0 } else { x.min(f32::MAX) };
        let all = x.iter().zip(first..).filter(|(x, _)| **x > f32::NEG_INFINITY);
        let mut best: Vec<_> = all.map(|(x, id)| (finite(x), id)).collect();
        best.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let largest = best.first().map_or(0.0, |(x, _)| f64::from(*x));
        let sum = best.iter().fold(0.0, |sum, (x, _)| sum + (f64::from(*x) - largest).exp());
        best.truncate(BEST);
        let drawn = draw.exact(x, first).map(|(key, id, _)| (key, id));
        Self { best, sum, drawn }
    }

    /// Returns the words that must be exact: all except the sum and the key.
    fn words(&self) -> [Option<u32>; RECORD_WORDS] {
        let mut words = [Some(f32::NEG_INFINITY.to_bits()); RECORD_WORDS];
        words[BEST..2 * BEST].fill(Some(NO_ID));
        for (i, (value, id)) in self.best.iter().enumerate() {
            (words[i], words[BEST + i]) = (Some(value.to_bits()), Some(*id));
        }
        words[2 * BEST] = words[0];
        words[2 * BEST + 1] = None;
        (words[2 * BEST + 2], words[2 * BEST + 3]) = match self.drawn {
            Some((_, id)) => (None, Some(id)),
            None => (words[2 * BEST + 2], Some(NO_ID)),
        };
        words
    }

    /// Returns the record as a kernel writes it.
    fn written(&self) -> [u32; RECORD_WORDS] {
        let key = self.drawn.map_or(f32::NEG_INFINITY, |(key, _)| key as f32);
        let mut words = self.words();
        words[2 * BEST + 1] = Some((self.sum as f32).to_bits());
        words[2 * BEST + 2] = Some(key.to_bits());
        words.map(|word| word.unwrap_or_default())
    }
}

/// Returns the expected content of an array of records. The launch writes the first `used` of them.
pub(super) fn content(records: &[Record], used: usize) -> Content {
    let (mut words, mut values) = (Vec::new(), Vec::new());
    for (i, record) in records.iter().enumerate() {
        // Poison.
        let unused = [Some(u32::MAX); RECORD_WORDS];
        words.extend(if i < used { record.words() } else { unused });
        let key = record.drawn.map(|(key, _)| key);
        values.extend([None; RECORD_WORDS - 3]);
        values.extend([Some(record.sum), key, None].map(|value| value.filter(|_| i < used)));
    }
    Content::Both { words, values }
}

/// Returns the WGSL program of a kernel.
macro_rules! wgsl {
    ($function:literal) => {
        $crate::rows::Wgsl {
            function: $function,
            compose: |_| {
                let own = include_str!(concat!($function, ".wgsl"));
                in_groups(&[ORDER, include_str!("best.wgsl"), own])
            },
            sub_groups: None,
        }
    };
}
use wgsl;

/// Upper bound of the local memory of a group, in bytes.
const LOCAL_BYTES: u64 = 17 << 10;

pub(crate) struct Picks;

impl Spec for Picks {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(1e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let row = RowKernel::new(grid, include_str!("picks.cl"), wgsl!("picks"));
        Some(RowKernel { local_bytes: LOCAL_BYTES, ..row })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        // The records of 70 parts need two rounds of a group.
        let shapes = ROW_SHAPES.into_iter().zip([(32, 32), (70, 7), (768, 100), (33, 5), (64, 64), (1, 1)]);
        let vocabulary = [
            (RowShape { capacity: 9, rows: 8, count_word: 1 }, (32000, 4096)),
            (RowShape { capacity: 2, rows: 2, count_word: 1 }, (7000, 100)),
        ];
        let mut out = Vec::new();
        for (shape, (width, part)) in shapes.chain(vocabulary) {
            out.push(case(random, shape, width, part));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 20), 1 + random.below(9000));
        let part = (1 + random.below(width)).max(width.div_ceil(100));
        case(random, shape, width, part)
    }
}

/// Returns a case for rows of `width` values in parts of `part` values.
fn case(random: &mut Random, shape: RowShape, width: usize, part: usize) -> Case {
    let rows: Vec<Vec<f32>> = (0..shape.capacity).map(|i| random.awkward(i, width)).collect();
    let draws = draws(random, &rows, part);
    let parts = draws.iter().zip(&rows).flat_map(|(draw, row)| {
        (0..)
            .step_by(part)
            .zip(row.chunks(part))
            .flat_map(|(first, part)| Record::new(part, first, draw).written())
    });
    let parts: Vec<u32> = parts.collect();
    let records: Vec<_> = rows.iter().zip(&draws).map(|(row, draw)| Record::new(row, 0, draw)).collect();
    let count = width.div_ceil(part);
    let label = format!("{count} parts of {}", shape.label(width));
    let case = Build::new(Kernel::Picks, label, &[shape.capacity, shape.count_word as usize, count]);
    let case = case.words(&params(&shape, &draws)).words(&parts).poison(shape.capacity * RECORD_WORDS * 4);
    case.expect(2, content(&records, shape.rows)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let row = [nan, 1.0, f32::MAX, -infinity, 1.0, infinity, -0.0, 0.0, -f32::MAX];
        let draw = Draw { seed: [3, 4], scale: 1.0 };
        let record = Record::new(&row, 7, &draw);
        let expected = [(9, f32::MAX), (12, f32::MAX), (8, 1.0), (11, 1.0), (13, 0.0), (14, 0.0)];
        let expected = expected.into_iter().chain([(15, -f32::MAX)]);
        assert!(
            record
                .best
                .iter()
                .map(|(x, id)| (*id, x.to_bits()))
                .eq(expected.map(|(id, x)| (id, x.to_bits())))
        );
        assert_eq!(record.sum, 2.0);
        let words = record.written();
        assert_eq!((words[7], words[BEST + 7], words[2 * BEST]), (0xff80_0000, NO_ID, f32::MAX.to_bits()));
        assert_eq!(f32::from_bits(words[2 * BEST + 1]), 2.0);
        let (key, id, _) = draw.exact(&row, 7).unwrap();
        assert_eq!((words[2 * BEST + 2], words[2 * BEST + 3]), ((key as f32).to_bits(), id));
        let none = Record::new(&[nan, -infinity], 0, &draw).written();
        assert_eq!((none[2 * BEST + 2], none[2 * BEST + 3]), (0xff80_0000, NO_ID));
        assert_eq!((none[0], none[2 * BEST], none[2 * BEST + 1]), (0xff80_0000, 0xff80_0000, 0));
    }

    #[test]
    fn invalid_parts_are_impossible() {
        let extents = |abi: &EntryAbi, constants: &[u32]| {
            let mut out = [0; 3];
            (abi.extents)(constants, &mut out);
            out
        };
        assert_eq!(extents(&ABI, &[3, 0, 2]), [16, 6 * 528, 3 * 528]);
        assert_eq!(extents(&ABI, &[3, 0, 0])[1], IMPOSSIBLE);
        assert_eq!(extents(&peaks::ABI, &[3, 0, 70, 32]), [16, 840, 9 * 528]);
        for (width, part) in [(70, 0), (70, peaks::MAX_PART + 1), (0, 32)] {
            assert_eq!(extents(&peaks::ABI, &[3, 0, width, part])[1..], [IMPOSSIBLE; 2], "{width} {part}");
        }
    }
}
