//! Kernels that find the candidates of rows of logits. A candidate is a word that is larger for better candidates: see
//! [`rank`].

use super::isa::Isa;
use super::row::{Row, RowWise};
use crate::kernel::Kernel;
use crate::params::USED_WORDS;
use crate::picks::noise::Draw;
use crate::picks::peaks::MAX_PART;
use crate::picks::{BEST, NO_ID, RECORD_WORDS};

/// Number of columns of the table as which a part is read.
const COLUMNS: usize = 256;

/// Returns the rank of a logit. `None` for NaN and −∞.
#[inline(always)]
fn rank(logit: f32, id: u32) -> Option<u64> {
    // Adding zero turns −0 into +0.
    let bits = (logit.min(f32::MAX) + 0.0).to_bits();
    let key = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    (logit > f32::NEG_INFINITY).then_some(u64::from(key) << 32 | u64::from(!id))
}

/// Returns the logit and the id of a candidate.
#[inline(always)]
fn of_rank(rank: u64) -> (f32, u32) {
    let key = (rank >> 32) as u32;
    (f32::from_bits(if key >> 31 == 1 { key ^ 1 << 31 } else { !key }), !(rank as u32))
}

/// Candidates of a part, without allocation.
struct Candidates {
    ranks: [u64; MAX_PART as usize],
    count: usize,
}

impl Candidates {
    #[inline(always)]
    fn new() -> Self {
        Self { ranks: [0; MAX_PART as usize], count: 0 }
    }

    #[inline(always)]
    fn push(&mut self, logit: f32, id: u32) {
        if let Some(rank) = rank(logit, id) {
            self.ranks[self.count] = rank;
            self.count += 1;
        }
    }
}

/// Sorts the best of `ranks` to the front, and writes them to a record. Returns the best logit.
#[inline(always)]
fn write_best(ranks: &mut [u64], out: &mut [u32]) -> f32 {
    if ranks.len() > BEST {
        ranks.select_nth_unstable_by(BEST, |a, b| b.cmp(a));
    }
    let count = BEST.min(ranks.len());
    let best = &mut ranks[..count];
    best.sort_unstable_by(|a, b| b.cmp(a));
    out[..BEST].fill(f32::NEG_INFINITY.to_bits());
    out[BEST..2 * BEST].fill(NO_ID);
    for (i, rank) in best.iter().enumerate() {
        let (logit, id) = of_rank(*rank);
        (out[i], out[BEST + i]) = (logit.to_bits(), id);
    }
    out[2 * BEST] = out[0];
    f32::from_bits(out[0])
}

/// Returns the draw from logit row `index`. The draws are the last parameter words in use. Returns `None` if there are fewer
/// words.
#[inline(always)]
fn draw_of(row: Row<'_>, index: usize) -> Option<Draw> {
    let params = row.all::<u32>(0);
    let end = params[USED_WORDS as usize] as usize;
    let first = end.checked_sub(Draw::WORDS * row.used_rows())?;
    params.get(first..end)?.as_chunks().0.get(index).map(Draw::of_words)
}

/// Writes the key and the id of the drawn candidate to a record.
#[inline(always)]
fn write_drawn(drawn: Option<(f32, u32)>, out: &mut [u32]) {
    let (key, id) = drawn.unwrap_or((f32::NEG_INFINITY, NO_ID));
    (out[2 * BEST + 2], out[2 * BEST + 3]) = (key.to_bits(), id);
}

/// Returns a logit that at least [`BEST`] logits of `x` reach, or −∞. Of that many columns, each has a logit that is
/// at least as large as the result. Sets `largest` to the largest logit of each column.
#[inline(always)]
fn floor<S: Isa>(s: S, x: &[f32], largest: &mut [f32; COLUMNS]) -> f32 {
    let (rows, rest) = x.as_chunks::<COLUMNS>();
    for (c, largest) in largest.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut best = s.splat(f32::NEG_INFINITY);
        for row in rows {
            // Returns the second argument if the first is NaN.
            best = s.max(s.load(&row.as_chunks::<16>().0[c]), best);
        }
        s.store(best, largest);
    }
    for (largest, x) in largest.iter_mut().zip(rest) {
        *largest = if *x > *largest { *x } else { *largest };
    }
    let mut ranked = *largest;
    let (_, floor, _) = ranked.select_nth_unstable_by(BEST - 1, |a, b| b.total_cmp(a));
    floor.min(f32::MAX)
}

/// Returns the sum of exp(logit − largest) over all candidates of `x`.
#[inline(always)]
fn sum_of_weights<S: Isa>(s: S, x: &[f32], largest: f32) -> f32 {
    let scalar = |x: &[f32]| {
        let weight = |x: &f32| {
            let is_candidate = *x > f32::NEG_INFINITY;
            if is_candidate { (f64::from(x.min(f32::MAX)) - f64::from(largest)).exp() } else { 0.0 }
        };
        x.iter().map(weight).sum::<f64>() as f32
    };
    // Below, no candidate counts as e⁻⁸⁷, which only vanishes beside a larger weight.
    if largest < -1e30 {
        return scalar(x);
    }
    let (lanes, rest) = x.as_chunks::<16>();
    let mut sum = s.zero();
    for lane in lanes {
        let finite = s.min(s.splat(f32::MAX), s.max(s.load(lane), s.splat(-f32::MAX)));
        sum = s.add(sum, s.exp(s.sub(finite, s.splat(largest))));
    }
    s.sum(sum) + scalar(rest)
}

/// Finds the candidates of the parts of each row.
pub(crate) struct Peaks;

// SAFETY: `row` reads binding 1 as floats, and writes the record of its part in binding 2.
unsafe impl RowWise for Peaks {
    const KERNEL: Kernel = Kernel::Peaks;

    /// Returns a grid of one group per part, because a row has many.
    fn grid(constants: &[u32]) -> [u32; 3] {
        let [rows, parts, _] = crate::picks::peaks::grid(constants);
        [rows.saturating_mul(parts), 1, 1]
    }

    #[inline(always)]
    fn rows(constants: &[u32], params: &[u32]) -> usize {
        let [_, parts, _] = crate::picks::peaks::grid(constants);
        super::launch::count(params, constants[1], constants[0]) * parts as usize
    }

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, part] = row.constants().map(|constant| constant as usize);
        let parts = width.div_ceil(part);
        let first = row.index % parts * part;
        let x = &row.all::<f32>(1)[row.index / parts * width..][..width][first..];
        let x = &x[..part.min(x.len())];
        let (mut largest, mut candidates) = ([0.0; COLUMNS], Candidates::new());
        let floor = floor(s, x, &mut largest);
        for c in (0..COLUMNS.min(x.len())).filter(|c| largest[*c] >= floor) {
            for (at, logit) in x.iter().enumerate().skip(c).step_by(COLUMNS).filter(|(_, x)| **x >= floor) {
                candidates.push(*logit, (first + at) as u32);
            }
        }
        let out = row.write_as::<u32>(2, RECORD_WORDS);
        let best = write_best(&mut candidates.ranks[..candidates.count], out);
        out[2 * BEST + 1] = sum_of_weights(s, x, best).to_bits();
        let draw = draw_of(row, row.index / parts);
        write_drawn(draw.and_then(|draw| draw.of(x, first as u32, best)), out);
    }
}

/// Finds the candidates of each row among those of its parts.
pub(crate) struct Picks;

// SAFETY: `row` reads binding 1 as words, and writes its record of binding 2.
unsafe impl RowWise for Picks {
    const KERNEL: Kernel = Kernel::Picks;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [_, _, parts] = row.constants().map(|constant| constant as usize);
        let draw = draw_of(row, row.index);
        let words = &row.all::<u32>(1)[row.index * parts * RECORD_WORDS..][..parts * RECORD_WORDS];
        let records = words.as_chunks::<RECORD_WORDS>().0;
        let out = row.write_as::<u32>(2, RECORD_WORDS);
        let candidates = records.iter().flat_map(|record| {
            let (values, ids) = record.split_at(BEST);
            values.iter().zip(ids).take_while(|(_, id)| **id != NO_ID)
        });
        let mut ranks: Vec<u64> =
            candidates.filter_map(|(value, id)| rank(f32::from_bits(*value), *id)).collect();
        let best = f64::from(write_best(&mut ranks, out));
        let used = records.iter().filter(|record| record[BEST] != NO_ID);
        let sums = used.map(|record| {
            let [largest, sum] = [record[2 * BEST], record[2 * BEST + 1]].map(f32::from_bits);
            f64::from(sum) * (f64::from(largest) - best).exp()
        });
        out[2 * BEST + 1] = (sums.fold(0.0, |a, b| a + b) as f32).to_bits();
        let drawn = records.iter().filter(|record| record[2 * BEST + 3] != NO_ID);
        let keys = drawn.filter_map(|record| {
            let [largest, key] = [record[2 * BEST], record[2 * BEST + 2]].map(f32::from_bits);
            rank(key + draw?.scaled(largest, best as f32), record[2 * BEST + 3])
        });
        write_drawn(keys.max().map(of_rank), out);
    }
}
