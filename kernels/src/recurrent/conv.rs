//! Causal convolution: each column of a row becomes a weighted sum of this column in the row and in the rows before it.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, pitch]` |
//! | 2 | weights: f32 `[columns, taps]`, then the biases: f32 `[columns]`, if there are any |
//! | 3 | state: f32 `[slots, taps - 1, columns]`, read and written: the latest inputs of a sequence, the oldest first |
//! | 4 | out: f32 `[rows, columns]`, written |
//!
//! The constants are four capacities (rows, sequences, table blocks, logit rows), the columns, the pitch, the first column
//! of the input in x, the first columns of the factors before and after the convolution ([`NONE`] without factors), the taps
//! (2 to [`MAX_TAPS`]), 1 if SiLU follows the sum and 0 otherwise, 1 if there are biases, the slots, and the [`Mode`]. The
//! last tap belongs to the row itself. What precedes the rows of a run comes from the [state](super), which holds inputs
//! that were multiplied by their factors.

use super::{NONE, Runs, starts};
use crate::abi::{IMPOSSIBLE, array, params, words};
use crate::cases::{Build, Case, Random};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::ITEMS;
use ragtag_hal::{Access, EntryAbi};

/// Largest number of taps.
pub const MAX_TAPS: u32 = 8;

/// Part of the work that a launch does. The kernel receives the discriminant. Groups of other rows read the state, so a
/// launch must not replace the state of a run with several rows that it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Computes all rows.
    Rows = 0,
    /// Replaces the states.
    States = 1,
    /// Both, for runs of one row.
    Both = 2,
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "causal_conv",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::ReadWrite, Access::Write],
    constants: 14,
    extents: |constants, extents| {
        let [
            rows,
            sequences,
            blocks,
            logit_rows,
            columns,
            pitch,
            from,
            before,
            after,
            taps,
            _,
            biased,
            slots,
            mode,
        ] = array(constants);
        let fits = |first: u32| first.checked_add(columns).is_some_and(|end| end <= pitch);
        let is_valid = fits(from) && [before, after].into_iter().all(|first| first == NONE || fits(first));
        if !is_valid
            || !(2..=MAX_TAPS).contains(&taps)
            || mode > Mode::Both as u32
            || sequences == 0
            || blocks == 0
        {
            return extents.fill(IMPOSSIBLE);
        }
        let weights = words(&[columns, taps]).saturating_add(if biased > 0 { words(&[columns]) } else { 0 });
        let (state, out) = (words(&[slots, taps - 1, columns]), words(&[rows, columns]));
        let params = params(rows, sequences, blocks, logit_rows);
        extents.copy_from_slice(&[params, words(&[rows, pitch]), weights, state, out]);
    },
};

/// Returns a grid of rows × blocks of columns.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[4].div_ceil(ITEMS), 1]
}

pub(crate) struct CausalConv;

impl Spec for CausalConv {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(3e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = [(1, 2, 0), (70, 4, 1), (300, 3, 2), (513, 4, 3), (64, 8, 1), (257, 4, 2)];
        let mut out = Vec::new();
        for ((capacity, starts), (columns, taps, form)) in starts().into_iter().zip(shapes) {
            for mode in [Mode::Rows, Mode::States, Mode::Both] {
                let is_single = starts.iter().all(|(_, rows)| *rows == 1);
                if mode != Mode::Both || is_single {
                    out.push(case(random, capacity, &starts, (columns, taps, form), mode, columns == 300));
                }
            }
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (capacity, starts) = Runs::random(random, 20);
        let shape = (1 + random.below(400), 2 + random.below(7), random.below(4));
        let (mode, lies) = ([Mode::Rows, Mode::States][random.below(2)], random.below(4) == 0);
        case(random, capacity, &starts, shape, mode, lies)
    }
}

/// Builds a case. The first bit of `form` stands for SiLU and biases, and the second one for factors.
fn case(
    random: &mut Random,
    capacity: usize,
    starts: &[(u32, u32)],
    (columns, taps, form): (usize, usize, usize),
    mode: Mode,
    lies: bool,
) -> Case {
    let runs = Runs::new(random, capacity, starts, lies);
    let (silu, biased, factors) = (form & 1, form & 1, form & 2 > 0);
    let pitch = 3 * columns + 5;
    let [from, before, after] =
        if factors { [2 * columns, 0, columns] } else { [3, NONE as usize, NONE as usize] };
    let x = random.floats(capacity * pitch, 2.0);
    let weights = random.floats(columns * (taps + biased), 1.0);
    let mut state = vec![f32::NAN; runs.count * (taps - 1) * columns];
    for (.., slot, _) in runs.each() {
        let Some(slot) = slot else { continue };
        let values = random.floats((taps - 1) * columns, 2.0);
        state[slot * values.len()..][..values.len()].copy_from_slice(&values);
    }
    let at = |row: usize, column: usize| f64::from(x[row * pitch + column]);
    let (mut out, mut states) = (vec![None; capacity * columns], vec![None; state.len()]);
    for (first, rows, read, written) in runs.each() {
        for column in 0..columns {
            let old = |t: usize| {
                read.map_or(0.0, |slot| f64::from(state[(slot * (taps - 1) + t) * columns + column]))
            };
            let input =
                |row: usize| at(row, from + column) * if factors { at(row, before + column) } else { 1.0 };
            let inputs: Vec<f64> = (0..taps - 1).map(old).chain((first..first + rows).map(input)).collect();
            for (i, window) in inputs.windows(taps).enumerate() {
                let weighted = window.iter().zip(&weights[column * taps..]).map(|(x, w)| x * f64::from(*w));
                let mut sum = weighted.sum::<f64>();
                sum += if biased > 0 { f64::from(weights[columns * taps + column]) } else { 0.0 };
                sum = if silu > 0 { sum / (1.0 + (-sum).exp()) } else { sum };
                sum *= if factors { at(first + i, after + column) } else { 1.0 };
                out[(first + i) * columns + column] = (mode != Mode::States).then_some(sum);
            }
            for (t, value) in inputs[rows..].iter().enumerate() {
                if let Some(slot) = written.filter(|_| mode != Mode::Rows) {
                    states[(slot * (taps - 1) + t) * columns + column] = Some(*value);
                }
            }
        }
    }
    let label = format!(
        "{starts:?} in {capacity} rows, {columns} columns, {taps} taps, form {form}, {mode:?}, lies {lies}"
    );
    let mut constants = runs.constants();
    constants.extend([columns, pitch, from, before, after, taps, silu, biased, runs.count, mode as usize]);
    let build = Build::new(Kernel::CausalConv, label, &constants).words(&runs.params.words());
    let build = build.floats(&x).floats(&weights).floats(&state).words(&vec![u32::MAX; out.len()]);
    build.expect(3, crate::cases::Content::F32(states)).expect_f32(4, out)
}
