//! Operators of recurrent layers: a causal convolution and a scan, each with a state of fixed size per sequence, and the
//! gated forms around them.
//!
//! A state buffer has *slots*. The first word of the block table of a sequence names two of them: the low half is the slot
//! with the state before the sequence's rows, and the high half is the slot for the state after them. They may be the same
//! slot. A state before position 0 is zero, and so is that of a slot beyond the buffer, which is not written either. The
//! rows of a sequence in a micro-batch follow each other: a *run*. The sequences of a micro-batch have the numbers from 0 on.

pub mod conv;
pub mod gated_heads;
pub mod gated_norm;
pub mod scan;

use crate::cases::{Params, Random};
use crate::params::ParamsShape;

/// Largest number of slots that a word of a block table can name.
pub const MAX_SLOTS: u32 = 1 << 16;

/// Returns the word of a block table for a sequence that reads its state from one slot and writes it to another.
pub const fn slots_word(from: u32, to: u32) -> u32 {
    from | to << 16
}

/// A column that does not exist.
pub const NONE: u32 = u32::MAX;

/// Runs of a test case: sequences with the first position and the number of rows of each.
struct Runs {
    starts: Vec<(u32, u32)>,
    /// Slots of each sequence.
    slots: Vec<(usize, usize)>,
    /// Number of slots.
    count: usize,
    params: Params,
}

impl Runs {
    /// Builds the parameter block of sequences with these first positions and numbers of rows. With `lies`, the slot of
    /// the first sequence does not exist.
    fn new(random: &mut Random, capacity: usize, starts: &[(u32, u32)], lies: bool) -> Self {
        let (count, table_blocks) = (2 * starts.len() + 1, 3);
        let (rows, sequences) = (capacity as u32, starts.len() as u32 + 1);
        let mut params = Params::new(ParamsShape { rows, logit_rows: 2, sequences, table_blocks });
        let order = random.shuffled(count);
        let mut slots = Vec::new();
        for (s, (first, rows)) in starts.iter().enumerate() {
            let from = order[2 * s] as usize;
            let to = if random.below(2) == 0 { from } else { order[2 * s + 1] as usize };
            let (from, to) = if lies && s == 0 { (count, count + 7) } else { (from, to) };
            slots.push((from, to));
            params.tables.push(vec![slots_word(from as u32, to as u32); table_blocks as usize]);
            params.positions.extend(*first..first + rows);
            params.row_sequences.extend((0..*rows).map(|_| s as u32));
        }
        Self { starts: starts.to_vec(), slots, count, params }
    }

    /// Draws starts of up to three sequences.
    fn random(random: &mut Random, most: usize) -> (usize, Vec<(u32, u32)>) {
        let draw = |random: &mut Random| {
            let first = if random.below(2) == 0 { 0 } else { random.below(50) };
            (first as u32, 1 + random.below(most) as u32)
        };
        let starts: Vec<_> = (0..1 + random.below(3)).map(|_| draw(random)).collect();
        (starts.iter().map(|(_, rows)| *rows as usize).sum::<usize>() + random.below(4), starts)
    }

    /// Returns the leading constants of a launch.
    fn constants(&self) -> Vec<usize> {
        let ParamsShape { rows, logit_rows, sequences, table_blocks } = self.params.shape;
        [rows, sequences, table_blocks, logit_rows].map(|count| count as usize).to_vec()
    }

    /// Returns the first row, the number of rows, and the slots of each run. A slot is `None` if it does not exist, or if
    /// the state in it does not count.
    fn each(&self) -> Vec<(usize, usize, Option<usize>, Option<usize>)> {
        let mut row = 0;
        let each = self.starts.iter().zip(&self.slots).map(|((position, rows), (from, to))| {
            let first = row;
            row += *rows as usize;
            let from = Some(*from).filter(|slot| *slot < self.count && *position > 0);
            (first, *rows as usize, from, Some(*to).filter(|slot| *slot < self.count))
        });
        each.collect()
    }
}

/// Starts of the listed cases, with the row capacity of each.
fn starts() -> Vec<(usize, Vec<(u32, u32)>)> {
    vec![
        (1, vec![(0, 1)]),
        (1, vec![(9, 1)]),
        (17, vec![(5, 3), (0, 1), (14, 9)]),
        (33, vec![(0, 33)]),
        (4, vec![(1, 1), (60, 1), (3, 1)]),
        (80, vec![(2, 70)]),
    ]
}
