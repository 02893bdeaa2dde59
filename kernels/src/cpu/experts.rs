//! Mixtures of experts: routes, products and weighted sums.

use super::HostKernel;
use super::formats::{Format, Of, Quantised};
use super::isa::Isa;
use super::launch::count;
use super::logits::{Best, top_of_row};
use super::matmul::{Exact, Fast};
use super::row::{Row, RowWise};
use crate::abi::array;
use crate::blocks::TensorType;
use crate::experts::matmul::{CONSTANTS, tiles};
use crate::experts::route::{Choice, Gate, Groups, MAX_EXPERTS, MAX_GROUPS, MAX_USED};
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, group_bytes};
use crate::matmul::TASK_ROWS;
use crate::quantize::{BLOCK, row_bytes, scales_offset, sums_offset};
use ragtag_hal::{HostBinding, HostCall, HostFn};
use std::marker::PhantomData;
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
        let factors = choice.is_scaled.then(|| row.all::<f32>(2));
        for ((weight, value), id) in weights.iter_mut().zip(values).zip(&*ids) {
            let factor = choice.scale * factors.map_or(1.0, |factors| factors[*id as usize]);
            *weight = (*value / sum * factor).to_bits();
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

/// Computes a gated function of the results of each row's experts.
pub(crate) struct GateUp;

// SAFETY: `row` reads bindings 1 and 3 as floats and binding 2 as words, and writes its row of binding 4 once.
unsafe impl RowWise for GateUp {
    const KERNEL: Kernel = Kernel::ExpertGate;

    #[inline(always)]
    fn row<S: Isa>(s: S, row: Row<'_>) {
        let [_, _, width, used, experts, ..]: [u32; 8] = row.constants();
        let (width, used, experts) = (width as usize, used as usize, experts as usize);
        let rule = [row.float(5), row.float(6), row.float(7)];
        let (gates, ups) = row.read(1, 2 * used * width).split_at(used * width);
        let ids = &row.all::<u32>(2)[row.index * 2 * used..][..used];
        let biases = row.all::<f32>(3);
        let out = row.write(4, used * width);
        for (slot, id) in ids.iter().enumerate() {
            let part = slot * width..(slot + 1) * width;
            let (gates, ups, out) = (&gates[part.clone()], &ups[part.clone()], &mut out[part]);
            let of_expert = |part: usize| &biases[(part * experts + *id as usize) * width..][..width];
            let biases = if experts == 0 { [&[][..]; 2] } else { [of_expert(0), of_expert(1)] };
            gate_up(s, [gates, ups], biases, rule, out);
        }
    }
}

/// Computes the gated function of an expert's results. `biases` are empty if the expert has none.
#[inline(always)]
fn gate_up<S: Isa>(
    s: S,
    [gates, ups]: [&[f32]; 2],
    biases: [&[f32]; 2],
    [alpha, limit, offset]: [f32; 3],
    out: &mut [f32],
) {
    for first in (0..out.len()).step_by(16) {
        let end = out.len().min(first + 16);
        let mut lanes = [[0.0; 16]; 2];
        for (lanes, (values, biases)) in lanes.iter_mut().zip([(gates, biases[0]), (ups, biases[1])]) {
            lanes[..end - first].copy_from_slice(&values[first..end]);
            let biases = biases.get(first..end).unwrap_or(&[]);
            lanes.iter_mut().zip(biases).for_each(|(lane, bias)| *lane += bias);
        }
        let [mut gates, mut ups] = lanes;
        // A comparison with NaN is false, so NaN stays.
        gates.iter_mut().filter(|gate| **gate > limit).for_each(|gate| *gate = limit);
        ups.iter_mut().filter(|up| **up > limit).for_each(|up| *up = limit);
        ups.iter_mut().filter(|up| **up < -limit).for_each(|up| *up = -limit);
        let gate = s.load(&gates);
        let power = s.exp(s.mul(gate, s.splat(-alpha)));
        let gated = s.div(gate, s.add(s.splat(1.0), power));
        let mut results = [0.0; 16];
        s.store(s.mul(gated, s.add(s.load(&ups), s.splat(offset))), &mut results);
        out[first..end].copy_from_slice(&results[..end - first]);
    }
}

/// Adds the weighted results of each row's experts.
pub(crate) struct Combine;

// SAFETY: `row` reads bindings 1 and 3 as floats and binding 2 as words, and writes its row of binding 4 once.
unsafe impl RowWise for Combine {
    const KERNEL: Kernel = Kernel::ExpertCombine;

    #[inline(always)]
    fn row<S: Isa>(_: S, row: Row<'_>) {
        let [_, _, width, used, experts] = row.constants();
        let (width, used) = (width as usize, used as usize);
        let values = row.read(1, used * width);
        let (ids, weights) = row.all::<u32>(2)[row.index * 2 * used..][..2 * used].split_at(used);
        let biases = row.all::<f32>(3);
        let out = row.write(4, width);
        out.fill(0.0);
        for ((values, weight), id) in values.chunks_exact(width.max(1)).zip(weights).zip(ids) {
            let weight = f32::from_bits(*weight);
            if experts == 0 {
                out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
            } else {
                let both = values.iter().zip(&biases[*id as usize * width..][..width]);
                out.iter_mut().zip(both).for_each(|(out, (value, bias))| *out += weight * (value + bias));
            }
        }
    }
}

/// Rows of x in the form that a product reads.
pub(crate) trait Rows: 'static {
    /// Smallest part of a row.
    type Word: Copy;

    /// Returns the number of words in a row of `k` values.
    fn words(k: usize) -> usize;
    /// Adds a row with `k` values from value `start` of `row` on, which has `width` values, to `to`.
    fn put(row: &[Self::Word], start: usize, width: usize, k: usize, to: &mut Vec<Self::Word>);
}

/// f32 activations.
pub(crate) struct Floats;

impl Rows for Floats {
    type Word = f32;

    fn words(k: usize) -> usize {
        k
    }

    fn put(row: &[f32], start: usize, _: usize, k: usize, to: &mut Vec<f32>) {
        to.extend_from_slice(&row[start..][..k]);
    }
}

/// [Int8 activations](crate::quantize).
pub(crate) struct Int8Rows;

impl Rows for Int8Rows {
    type Word = u32;

    fn words(k: usize) -> usize {
        row_bytes(k) / 4
    }

    /// `start` is a multiple of [`BLOCK`].
    fn put(row: &[u32], start: usize, width: usize, k: usize, to: &mut Vec<u32>) {
        let first = to.len();
        // Offsets of the parts of a row in bytes, and the values that share a word of each part.
        let parts = [
            (0, 0, 4),
            (scales_offset(width), scales_offset(k), BLOCK),
            (sums_offset(width), sums_offset(k), BLOCK / 2),
        ];
        for (from, at, values) in parts {
            to.resize(first + at / 4, 0);
            to.extend_from_slice(&row[from / 4 + start / values..][..k / values]);
        }
        to.resize(first + Self::words(k), 0);
    }
}

/// Multiplies rows of x by the weights of their experts. The kernels of [plain products](super::matmul) compute the sums,
/// because a second copy of their code would take long to compile.
///
/// Each task has a few weight rows. If a launch has fewer assignments than experts, a task computes them for one
/// assignment. Otherwise it finds the assignments to their expert, so that it reads its weights from memory only once.
pub(crate) struct ExpertMatMul<W, R>(Of<W>, PhantomData<R>);

impl<W: Format> HostKernel for ExpertMatMul<W, Floats> {
    const KERNEL: Kernel = Kernel::ExpertMatMul(W::TYPE, Activations::F32);

    fn grid(constants: &[u32]) -> [u32; 3] {
        product_grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { run::<Floats>(call, groups, W::TYPE, S::function::<Exact<W>>()) }
    }
}

impl<W: Quantised> HostKernel for ExpertMatMul<W, Int8Rows> {
    const KERNEL: Kernel = Kernel::ExpertMatMul(W::TYPE, Activations::Int8);

    fn grid(constants: &[u32]) -> [u32; 3] {
        product_grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { run::<Int8Rows>(call, groups, W::TYPE, S::function::<Fast<W>>()) }
    }
}

fn product_grid(constants: &[u32]) -> [u32; 3] {
    let tasks = match tasks_per_assignment(constants) {
        Some(tasks) => constants[0].saturating_mul(constants[7]).saturating_mul(tasks),
        None => constants[2].div_ceil(TASK_ROWS),
    };
    [tasks, 1, 1]
}

/// Computes some groups of a launch. `product` multiplies weights of type `tensor_type` by rows of x.
///
/// # Safety
/// The requirements of [`HostFn`] apply.
unsafe fn run<R: Rows>(call: &HostCall<'_>, groups: Range<u32>, tensor_type: TensorType, product: HostFn) {
    let [_, _, _, k, ..]: [u32; CONSTANTS] = array(call.constants);
    // SAFETY: guaranteed by the caller.
    let launch = unsafe { Launch::<R>::new(call, product, group_bytes(tensor_type, k as usize)) };
    match tasks_per_assignment(call.constants) {
        // SAFETY: guaranteed by the caller.
        Some(tasks) => unsafe { launch.run_each(groups, tasks as usize) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { launch.run_shared(groups) },
    }
}

/// Returns the number of tasks of each assignment, or `None` if the assignments to an expert share its tasks.
fn tasks_per_assignment(constants: &[u32]) -> Option<u32> {
    let [rows, _, n, _, _, expert_rows, _, used, ..]: [u32; CONSTANTS] = array(constants);
    let experts = n / expert_rows.max(1);
    (rows.saturating_mul(used) < experts).then(|| tiles(expert_rows, TASK_ROWS))
}

/// Maximum number of assignments that share one read of a task's weights.
const TILE: usize = 32;

/// Bindings and constants of a launch, and the kernel that computes its products.
struct Launch<'a, R: Rows> {
    call: &'a HostCall<'a>,
    product: HostFn,
    group_bytes: usize,
    x: &'a [R::Word],
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
    is_fixed: bool,
    x_pitch: usize,
    x_column: usize,
    y_gap: usize,
}

impl<'a, R: Rows> Launch<'a, R> {
    /// Reads the constants of a launch.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn new(call: &'a HostCall<'a>, product: HostFn, group_bytes: usize) -> Self {
        let [rows, word, others @ ..]: [u32; CONSTANTS] = array(call.constants);
        let others = others.map(|count| count as usize);
        let [n, k, first_row, expert_rows, piece, used, x_slots, column, stride, is_fixed, ..] = others;
        let [.., x_pitch, x_column, y_gap] = others;
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, x, route) =
            unsafe { (call.read::<u32>(0), call.read::<R::Word>(2), call.read::<u32>(3)) };
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
            is_fixed: is_fixed != 0,
            x_pitch,
            x_column,
            y_gap,
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
            self.put_x(assignment, &mut x);
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
                let all = 0..self.assignments;
                if self.is_fixed {
                    found.extend(all.skip(expert).step_by(self.used));
                } else {
                    found.extend(all.filter(|assignment| self.expert_of(*assignment) == expert));
                }
                for tile in found.chunks(TILE) {
                    x.clear();
                    tile.iter().for_each(|assignment| self.put_x(*assignment, &mut x));
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
        let (row, slot) = (assignment / self.used, assignment % self.used);
        if self.is_fixed { slot } else { self.route[row * 2 * self.used + slot] as usize }
    }

    /// Adds the row of x of an assignment to `to`.
    fn put_x(&self, assignment: usize, to: &mut Vec<R::Word>) {
        let (row, slot) = (assignment / self.used, assignment % self.used);
        let (pitch, slot) = (self.x_pitch, slot % self.x_slots);
        let width = self.x_slots * pitch;
        let words = R::words(width);
        R::put(&self.x[row * words..][..words], slot * pitch + self.x_column, width, self.k, to);
    }

    /// Multiplies the weight rows `rows` of the binding by rows of x. Writes [`TASK_ROWS`] sums for each row of x.
    ///
    /// # Safety
    /// The requirements of [`HostFn`] apply.
    unsafe fn multiply(&self, rows: &Range<usize>, x: &mut [R::Word], sums: &mut [f32]) {
        let (groups, weights) = (rows.len().div_ceil(GROUP_ROWS), self.call.bindings[1].pointer());
        let weights = weights.wrapping_add(rows.start / GROUP_ROWS * self.group_bytes);
        let mut header = [(x.len() / R::words(self.k)) as u32; 4];
        let bindings = [
            HostBinding::new(header.as_mut_ptr().cast(), size_of_val(&header)),
            HostBinding::new(weights, groups * self.group_bytes),
            HostBinding::new(x.as_mut_ptr().cast(), size_of_val(x)),
            HostBinding::new(sums.as_mut_ptr().cast(), size_of_val(sums)),
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
                let of_slot = row * self.stride + self.column + slot * self.y_gap;
                let at = of_slot + (piece * self.used + slot) * self.piece + within;
                // SAFETY: guaranteed by the caller.
                unsafe { self.call.write::<f32>(4, at..at + 1)[0] = *sum };
            }
        }
    }
}
