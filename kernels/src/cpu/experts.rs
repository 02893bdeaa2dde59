//! Mixtures of experts: routes, products and weighted sums.

use super::HostKernel;
use super::formats::{Format, Of};
use super::isa::Isa;
use super::launch::count;
use super::logits::{Best, top_of_row};
use super::matmul::Exact;
use super::row::{Row, RowWise};
use crate::abi::array;
use crate::experts::matmul::tiles;
use crate::experts::route::{Choice, Gate, Groups, MAX_EXPERTS, MAX_GROUPS, MAX_USED};
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, group_bytes};
use crate::matmul::TASK_ROWS;
use ragtag_hal::{HostBinding, HostCall, HostFn};
use std::ops::Range;

/// Chooses the experts of each row.
pub(crate) struct Route;

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for Route {
    const KERNEL: Kernel = Kernel::ExpertRoute;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, experts, choice @ ..]: [u32; 12] = row.constants();
        let choice = Choice::read(choice);
        let logits = row.read(1, experts as usize);
        let (ids, weights) =
            row.write_as::<u32>(3, 2 * choice.used as usize).split_at_mut(choice.used as usize);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        // The sum is NaN if any probability is.
        if all.is_nan() {
            ids.iter_mut().zip(0..).for_each(|(id, at)| *id = at);
            return weights.fill(f32::NAN.to_bits());
        }
        let probability = |logit: f32| match choice.gate {
            Gate::Softmax => (logit - largest).exp() / all,
            Gate::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        };
        let mut scores = [0.0; MAX_EXPERTS as usize];
        let scores = &mut scores[..experts as usize];
        if choice.is_by_logit() {
            scores.copy_from_slice(logits);
        } else {
            scores.iter_mut().zip(logits).for_each(|(score, logit)| *score = probability(*logit));
        }
        if choice.is_biased {
            scores.iter_mut().zip(row.all::<f32>(2)).for_each(|(score, bias)| *score += bias);
        }
        keep_groups(scores, choice.groups);
        let mut values = [0.0; MAX_USED as usize];
        let values = &mut values[..ids.len()];
        top_of_row(s, scores, &mut Best { values, indices: ids });
        values.iter_mut().zip(&*ids).for_each(|(value, id)| *value = probability(logits[*id as usize]));
        let sum = if choice.is_normalised { values.iter().sum::<f32>() + choice.epsilon } else { 1.0 };
        for (weight, value) in weights.iter_mut().zip(values) {
            *weight = (*value / sum * choice.scale).to_bits();
        }
    }
}

/// Sets the scores of all experts to −∞ whose group does not take part.
#[inline(always)]
fn keep_groups(scores: &mut [f32], groups: Groups) {
    if groups.count == 1 {
        return;
    }
    let size = scores.len() / groups.count as usize;
    let mut values = [0.0; MAX_GROUPS as usize];
    for (value, group) in values.iter_mut().zip(scores.chunks_exact(size)) {
        let two = |[first, second]: [f32; 2], score: &f32| [first.max(*score), second.max(first.min(*score))];
        let [first, second] = group.iter().fold([f32::NEG_INFINITY; 2], two);
        *value = if groups.best == 2 { first + second } else { first };
    }
    let values = &values[..groups.count as usize];
    for (at, group) in scores.chunks_exact_mut(size).enumerate() {
        let is_before =
            |(other, value): (usize, &f32)| *value > values[at] || *value == values[at] && other < at;
        if values.iter().enumerate().filter(|each| is_before(*each)).count() >= groups.kept as usize {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Adds the weighted results of each row's experts.
pub(crate) struct Combine;

// SAFETY: `row` reads bindings 1 and 2 as floats, and writes its row of binding 3 once.
unsafe impl RowWise for Combine {
    const KERNEL: Kernel = Kernel::ExpertCombine;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [_, _, width, used] = row.constants();
        let (width, used) = (width as usize, used as usize);
        let (values, route) = (row.read(1, used * width), row.read(2, 2 * used));
        let out = row.write(3, width);
        out.fill(0.0);
        for (values, weight) in values.chunks_exact(width.max(1)).zip(&route[used..]) {
            out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
        }
    }
}

/// Multiplies rows of x by the weights of their experts. The kernel of [plain products](Exact) computes the sums, because a
/// second copy of its code would take long to compile.
///
/// Each task has a few weight rows. If a launch has fewer assignments than experts, a task computes them for one
/// assignment. Otherwise it finds the assignments to their expert, so that it reads its weights from memory only once.
pub(crate) struct ExpertMatMul<W>(Of<W>);

impl<W: Format> HostKernel for ExpertMatMul<W> {
    const KERNEL: Kernel = Kernel::ExpertMatMul(W::TYPE, Activations::F32);

    fn grid(constants: &[u32]) -> [u32; 3] {
        let tasks = match tasks_per_assignment(constants) {
            Some(tasks) => constants[0].saturating_mul(constants[7]).saturating_mul(tasks),
            None => constants[2].div_ceil(TASK_ROWS),
        };
        [tasks, 1, 1]
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let [_, _, _, k, ..]: [u32; 11] = array(call.constants);
        // SAFETY: guaranteed by the caller.
        let launch =
            unsafe { Launch::new(call, S::function::<Exact<W>>(), group_bytes(W::TYPE, k as usize)) };
        match tasks_per_assignment(call.constants) {
            // SAFETY: guaranteed by the caller.
            Some(tasks) => unsafe { launch.run_each(groups, tasks as usize) },
            // SAFETY: guaranteed by the caller.
            None => unsafe { launch.run_shared(groups) },
        }
    }
}

/// Returns the number of tasks of each assignment, or `None` if the assignments to an expert share its tasks.
fn tasks_per_assignment(constants: &[u32]) -> Option<u32> {
    let [rows, _, n, _, _, expert_rows, _, used, ..]: [u32; 11] = array(constants);
    let experts = n / expert_rows.max(1);
    (rows.saturating_mul(used) < experts).then(|| tiles(expert_rows, TASK_ROWS))
}

/// Maximum number of assignments that share one read of a task's weights.
const TILE: usize = 32;

/// Bindings and constants of a launch, and the kernel that computes its products.
struct Launch<'a> {
    call: &'a HostCall<'a>,
    product: HostFn,
    group_bytes: usize,
    x: &'a [f32],
    route: &'a [u32],
    /// Number of assignments.
    assignments: usize,
    n: usize,
    k: usize,
    first_row: usize,
    expert_rows: usize,
    piece: usize,
    used: usize,
    x_slots: usize,
    column: usize,
    stride: usize,
}

impl<'a> Launch<'a> {
    /// Reads the constants of a launch.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn new(call: &'a HostCall<'a>, product: HostFn, group_bytes: usize) -> Self {
        let [rows, word, others @ ..]: [u32; 11] = array(call.constants);
        let [n, k, first_row, expert_rows, piece, used, x_slots, column, stride] =
            others.map(|count| count as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x, route) = unsafe { (call.read::<u32>(0), call.read::<f32>(2), call.read::<u32>(3)) };
        let assignments = count(params, word, rows) * used;
        Self {
            call,
            product,
            group_bytes,
            x,
            route,
            assignments,
            n,
            k,
            first_row,
            expert_rows,
            piece,
            used,
            x_slots,
            column,
            stride,
        }
    }

    /// Computes the tasks in `groups`. Each assignment has `tasks` tasks.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn run_each(&self, groups: Range<u32>, tasks: usize) {
        let mut x = Vec::new();
        for task in groups.start as usize..groups.end as usize {
            let assignment = task / tasks;
            if assignment >= self.assignments {
                return;
            }
            let expert = self.expert_of(assignment);
            let first =
                expert * self.expert_rows / GROUP_ROWS * GROUP_ROWS + task % tasks * TASK_ROWS as usize;
            // The part of these rows that is bound.
            let last = (first + TASK_ROWS as usize).min(self.first_row + self.n);
            let of_all = first.max(self.first_row)..last;
            if of_all.is_empty() {
                continue;
            }
            x.clear();
            x.extend_from_slice(self.x_of(assignment));
            let mut sums = [0.0; TASK_ROWS as usize];
            let rows = of_all.start - self.first_row..of_all.end - self.first_row;
            // SAFETY: guaranteed by the caller.
            unsafe { self.multiply(&rows, &mut x, &mut sums) };
            // SAFETY: each task writes the columns of its own weight rows and assignment.
            unsafe { self.put(assignment, &sums, &of_all, expert) };
        }
    }

    /// Computes the tasks in `groups`, which the assignments to an expert share.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn run_shared(&self, groups: Range<u32>) {
        let (mut found, mut x) = (Vec::new(), Vec::new());
        for task in groups.start as usize..groups.end as usize {
            let first = task * TASK_ROWS as usize;
            let rows = first..(first + TASK_ROWS as usize).min(self.n);
            let of_all = self.first_row + rows.start..self.first_row + rows.end;
            for expert in of_all.start / self.expert_rows..of_all.end.div_ceil(self.expert_rows) {
                found.clear();
                found
                    .extend((0..self.assignments).filter(|assignment| self.expert_of(*assignment) == expert));
                for tile in found.chunks(TILE) {
                    x.clear();
                    tile.iter().for_each(|assignment| x.extend_from_slice(self.x_of(*assignment)));
                    let mut sums = [0.0; TILE * TASK_ROWS as usize];
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.multiply(&rows, &mut x, &mut sums) };
                    for (assignment, sums) in tile.iter().zip(sums.chunks_exact(TASK_ROWS as usize)) {
                        // SAFETY: each task writes the columns of its own weight rows.
                        unsafe { self.put(*assignment, sums, &of_all, expert) };
                    }
                }
            }
        }
    }

    fn expert_of(&self, assignment: usize) -> usize {
        self.route[assignment / self.used * 2 * self.used + assignment % self.used] as usize
    }

    /// Returns the row of x of an assignment.
    fn x_of(&self, assignment: usize) -> &'a [f32] {
        let (row, slot) = (assignment / self.used, assignment % self.used);
        &self.x[(row * self.x_slots + slot % self.x_slots) * self.k..][..self.k]
    }

    /// Multiplies the weight rows `rows` of the binding by rows of x. Writes [`TASK_ROWS`] sums for each row of x.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn multiply(&self, rows: &Range<usize>, x: &mut [f32], sums: &mut [f32]) {
        let (groups, weights) = (rows.len().div_ceil(GROUP_ROWS), self.call.bindings[1].pointer());
        let weights = weights.wrapping_add(rows.start / GROUP_ROWS * self.group_bytes);
        let mut header = [(x.len() / self.k) as u32; 4];
        let of_floats =
            |floats: &mut [f32]| HostBinding::new(floats.as_mut_ptr().cast(), size_of_val(floats));
        let bindings = [
            HostBinding::new(header.as_mut_ptr().cast(), size_of_val(&header)),
            HostBinding::new(weights, groups * self.group_bytes),
            of_floats(x),
            of_floats(sums),
        ];
        let constants = [header[0], 0, rows.len() as u32, self.k as u32, 0, TASK_ROWS];
        let call = HostCall { bindings: &bindings, constants: &constants, grid: [1; 3] };
        // SAFETY: the weights are whole groups of the launch's binding, which start at multiples of 64 bytes. The other
        // bindings are exclusive and have the sizes of the constants.
        unsafe { (self.product)(&call, 0..1) };
    }

    /// Writes the sums of weight rows `rows`, as far as they belong to `expert`.
    ///
    /// # Safety
    /// The requirements of [`HostCall::write`] apply: the task must own the columns of `rows`.
    unsafe fn put(&self, assignment: usize, sums: &[f32], rows: &Range<usize>, expert: usize) {
        let (row, slot) = (assignment / self.used, assignment % self.used);
        let first = expert * self.expert_rows;
        for (weight_row, sum) in rows.clone().zip(sums) {
            if (first..first + self.expert_rows).contains(&weight_row) {
                let (piece, within) = ((weight_row - first) / self.piece, (weight_row - first) % self.piece);
                let at = row * self.stride + self.column + (piece * self.used + slot) * self.piece + within;
                // SAFETY: guaranteed by the caller.
                unsafe { self.call.write::<f32>(4, at..at + 1)[0] = *sum };
            }
        }
    }
}
