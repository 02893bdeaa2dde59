//! ExpertRoute: chooses the experts of each row, and computes their weights.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | logits of the router: f32 `[rows, experts]` |
//! | 2 | biases or factors: f32 `[experts]`; not read without either |
//! | 3 | route: per row the ids of the chosen experts (u32), then their weights (f32), `2 · used` words, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the number of
//! experts (at most [`MAX_EXPERTS`]), and those of a [`Choice`]. A launch has one group per row.
//!
//! The gate turns each logit into a probability. The score of an expert is its logit, or with biases or groups of
//! experts its probability plus its bias. With groups, only those with the largest values take part. The chosen experts
//! have the largest scores, in the order of [`top_k`](crate::top_k): among equal scores, the lowest id comes first. The
//! weight of an expert is its probability, without the bias. It may be divided by the sum over the chosen experts, and then
//! be multiplied by the expert's factor.
//!
//! If the logits of a row contain NaN or +∞, or are all −∞, its ids are 0, 1, … and its weights are NaN.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Maximum number of experts per row.
pub const MAX_USED: u32 = 64;
/// Maximum number of experts.
pub const MAX_EXPERTS: u32 = 1024;
/// Maximum number of groups of experts.
pub const MAX_GROUPS: u32 = 64;

/// Value of the constant for biases if experts have factors.
const FACTORS: u32 = 2;

/// Function that turns logits into probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// e^logit, divided by the sum over all experts.
    Softmax = 0,
    /// 1 / (1 + e^−logit).
    Sigmoid = 1,
}

/// Groups of neighbouring experts. Only some of the groups take part in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups, a divisor of the number of experts. One group changes nothing.
    pub count: u32,
    /// Number of groups that take part: those with the largest values, and among equal ones the first.
    pub kept: u32,
    /// Number of largest scores whose sum is the value of a group: 1 or 2.
    pub best: u32,
}

/// Rule by which a router chooses experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Number of experts per row: 1 to [`MAX_USED`], and at most the number of experts that take part.
    pub used: u32,
    /// Function of the logits.
    pub gate: Gate,
    /// Whether the weights are divided by the sum over the chosen experts.
    pub is_normalised: bool,
    /// Number that is added to this sum.
    pub epsilon: f32,
    /// Factor of the weights.
    pub scale: f32,
    /// Whether each expert has a bias.
    pub is_biased: bool,
    /// Whether each expert has a factor of its weight. It then has no bias.
    pub is_scaled: bool,
    /// Groups of experts.
    pub groups: Groups,
}

impl Choice {
    /// Returns a softmax over all experts, without biases and groups.
    pub fn softmax(used: u32, is_normalised: bool) -> Self {
        let groups = Groups { count: 1, kept: 1, best: 1 };
        let (gate, epsilon, scale) = (Gate::Softmax, 0.0, 1.0);
        Self { used, gate, is_normalised, epsilon, scale, is_biased: false, is_scaled: false, groups }
    }

    /// Returns the constants of a launch after the number of experts.
    pub fn constants(&self) -> [u32; 9] {
        let Self { used, gate, is_normalised, epsilon, scale, is_biased, is_scaled, groups } = *self;
        let Groups { count, kept, best } = groups;
        let flags = [is_normalised.into(), if is_scaled { FACTORS } else { is_biased.into() }];
        [used, gate as u32, flags[0], epsilon.to_bits(), scale.to_bits(), flags[1], count, kept, best]
    }

    /// Reads the constants of a launch after the number of experts.
    pub(crate) fn read(constants: [u32; 9]) -> Self {
        let [used, gate, is_normalised, epsilon, scale, of_experts, count, kept, best] = constants;
        Self {
            used,
            gate: if gate == Gate::Softmax as u32 { Gate::Softmax } else { Gate::Sigmoid },
            is_normalised: is_normalised != 0,
            epsilon: f32::from_bits(epsilon),
            scale: f32::from_bits(scale),
            is_biased: of_experts != 0 && of_experts != FACTORS,
            is_scaled: of_experts == FACTORS,
            groups: Groups { count, kept, best },
        }
    }

    /// Returns whether each expert has a number: a bias or a factor.
    pub fn has_numbers(&self) -> bool {
        self.is_biased || self.is_scaled
    }

    /// Returns whether the scores are the logits.
    pub(crate) fn is_by_logit(&self) -> bool {
        !self.is_biased && self.groups.count == 1
    }

    /// Returns whether this number of experts allows the choice.
    pub fn is_possible(&self, experts: u32) -> bool {
        let Groups { count, kept, best } = self.groups;
        experts <= MAX_EXPERTS
            && (1..=MAX_GROUPS).contains(&count)
            && experts.is_multiple_of(count)
            && (1..=count).contains(&kept)
            && (1..=2.min(experts / count)).contains(&best)
            && (1..=MAX_USED.min(experts / count * kept)).contains(&self.used)
    }
}

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "expert_route",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 12,
    extents: |constants, extents| {
        let [rows, _, experts, choice @ ..]: [u32; 12] = array(constants);
        let choice = Choice::read(choice);
        let route = if choice.is_possible(experts) { words(&[rows, choice.used, 2]) } else { IMPOSSIBLE };
        let numbers = if choice.has_numbers() { words(&[experts]) } else { 0 };
        extents.copy_from_slice(&[HEADER_BYTES, words(&[rows, experts]), numbers, route]);
    },
};

/// Reference implementation in f64. Returns the ids of a row and their weights, and the least distance between two values
/// whose order decides.
fn reference(logits: &[f32], biases: &[f32], choice: &Choice) -> (Vec<u32>, Vec<f64>, f64) {
    let used = choice.used as usize;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.iter().any(|logit| logit.is_nan()) || largest.is_infinite() {
        return ((0..choice.used).collect(), vec![f64::NAN; used], f64::INFINITY);
    }
    let exp = |logit: &f32| (f64::from(*logit) - f64::from(largest)).exp();
    let all: f64 = logits.iter().map(exp).sum();
    let probability = |logit: &f32| match choice.gate {
        Gate::Softmax => exp(logit) / all,
        Gate::Sigmoid => 1.0 / (1.0 + (-f64::from(*logit)).exp()),
    };
    let probabilities: Vec<f64> = logits.iter().map(probability).collect();
    let scores: Vec<f64> = if choice.is_by_logit() {
        logits.iter().copied().map(f64::from).collect()
    } else {
        let bias = |at: usize| if choice.is_biased { f64::from(biases[at]) } else { 0.0 };
        probabilities.iter().enumerate().map(|(at, probability)| probability + bias(at)).collect()
    };
    let mut least = f64::INFINITY;
    // Sorts by value. Notes the distances of the first `count` values from the next.
    let mut sorted = |values: Vec<f64>, ids: Vec<u32>, count: usize| {
        let mut ids = ids;
        let order =
            |a: u32, b: u32| values[a as usize].partial_cmp(&values[b as usize]).expect("neither is NaN");
        ids.sort_by(|a, b| order(*b, *a).then(a.cmp(b)));
        for pair in ids[..(count + 1).min(ids.len())].windows(2) {
            least = least.min(values[pair[0] as usize] - values[pair[1] as usize]);
        }
        ids.truncate(count);
        ids
    };
    let Groups { count, kept, best } = choice.groups;
    let size = logits.len() / count as usize;
    let value = |group: &[f64]| {
        let mut group = group.to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group[..best as usize].iter().sum()
    };
    let groups = sorted(scores.chunks(size).map(value).collect(), (0..count).collect(), kept as usize);
    let takes_part = |id: &u32| groups.contains(&(id / size as u32));
    let ids = sorted(scores, (0..logits.len() as u32).filter(takes_part).collect(), used);
    let chosen: f64 = ids.iter().map(|id| probabilities[*id as usize]).sum();
    let sum = if choice.is_normalised { chosen + f64::from(choice.epsilon) } else { 1.0 };
    let factor = |at: usize| f64::from(choice.scale * if choice.is_scaled { biases[at] } else { 1.0 });
    let weights = ids.iter().map(|id| probabilities[*id as usize] / sum * factor(*id as usize)).collect();
    (ids, weights, least)
}

pub(crate) struct ExpertRoute;

impl Spec for ExpertRoute {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(1e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [(1, 1), (8, 2), (60, 4), (128, 8), (64, 6), (70, 64)];
        let more = (RowShape { capacity: 9, rows: 9, count_word: 0 }, (600, 10));
        let shapes = ROW_SHAPES.into_iter().zip(sizes).chain([more]).enumerate();
        let plain = shapes.map(|(i, (shape, (experts, used)))| {
            let scale = [1.0, 2.5][i % 3 / 2];
            let choice = Choice { scale, ..Choice::softmax(used, i % 2 == 0) };
            case(random, shape, experts, choice)
        });
        let mut all: Vec<Case> = plain.collect();
        let groups = |count, kept, best| Groups { count, kept, best };
        let sigmoid = Choice { gate: Gate::Sigmoid, epsilon: 1e-6, ..Choice::softmax(8, true) };
        let rules = [
            (256, Choice { is_biased: true, scale: 2.5, groups: groups(8, 4, 2), ..sigmoid }),
            (64, Choice { groups: groups(8, 3, 1), scale: 16.0, ..Choice::softmax(6, false) }),
            (32, Choice { is_biased: true, ..sigmoid }),
            (64, Choice { is_biased: true, ..Choice::softmax(6, true) }),
            (16, Choice { is_normalised: false, used: 1, ..sigmoid }),
            (1024, Choice { is_biased: true, groups: groups(64, 1, 2), used: 16, ..sigmoid }),
            (128, Choice { is_scaled: true, ..Choice::softmax(8, true) }),
            (24, Choice { is_scaled: true, groups: groups(4, 2, 2), scale: 1.5, ..sigmoid }),
        ];
        let shape = RowShape { capacity: 7, rows: 5, count_word: 1 };
        all.extend(rules.map(|(experts, choice)| case(random, shape, experts, choice)));
        all
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, count) = (RowShape::random(random, 20), 1 + random.below(8) as u32);
        let size = 1 + random.below(40) as u32;
        let kept = 1 + random.below(count as usize) as u32;
        let groups = Groups { count, kept, best: 1 + random.below(2.min(size as usize)) as u32 };
        let of_experts = random.below(3);
        let choice = Choice {
            gate: [Gate::Softmax, Gate::Sigmoid][random.below(2)],
            epsilon: [0.0, 1e-3][random.below(2)],
            scale: 1.5,
            is_biased: of_experts == 1,
            is_scaled: of_experts == 2,
            groups,
            ..Choice::softmax(1 + random.below((size * kept).min(20) as usize) as u32, random.below(2) == 0)
        };
        case(random, shape, count * size, choice)
    }
}

/// Least distance between two values whose order decides. A device may round them to the other order if they are closer.
const LEAST_DISTANCE: f64 = 1e-6;

/// Returns the logits of row `at`, which decide the choice clearly. Every other row has logits of common sizes. The
/// others have equal logits, NaN or infinities, if the logits alone decide.
fn logits(random: &mut Random, at: usize, experts: u32, biases: &[f32], choice: &Choice) -> Vec<f32> {
    let experts = experts as usize;
    if at % 2 == 1 && choice.is_by_logit() {
        return random.awkward(at / 2, experts);
    }
    if at % 4 == 3 {
        let mut logits = random.floats(experts, 6.0);
        logits[random.below(experts)] = [f32::NAN, f32::INFINITY][at / 4 % 2];
        return logits;
    }
    loop {
        let logits = random.floats(experts, 6.0);
        if choice.is_by_logit() || reference(&logits, biases, choice).2 > LEAST_DISTANCE {
            return logits;
        }
    }
}

fn case(random: &mut Random, shape: RowShape, experts: u32, choice: Choice) -> Case {
    let biases = random.floats(experts as usize, 0.3);
    let rows = (0..shape.capacity).map(|at| logits(random, at, experts, &biases, &choice));
    let rows: Vec<Vec<f32>> = rows.collect();
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        let (of_row, weights_of_row, _) = reference(row, &biases, &choice);
        ids.extend(of_row.into_iter().map(|id| (i < shape.rows).then_some(id)));
        weights.extend(weights_of_row.into_iter().map(|weight| (i < shape.rows).then_some(weight)));
    }
    let constants = [shape.capacity, shape.count_word as usize, experts as usize];
    let constants = [&constants[..], &choice.constants().map(|constant| constant as usize)].concat();
    let label = format!("{}, {choice:?}", shape.label(experts as usize));
    let build = Build::new(Kernel::ExpertRoute, label, &constants).words(&shape.header());
    // The words are 7, so that an unwritten weight is not the NaN that some rows need.
    let build = build.floats(&rows.concat()).floats(&biases).words(&vec![7; 2 * ids.len()]);
    build.expect(3, Content::Routes { used: choice.used as usize, ids, weights }).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY, 2f32.ln()];
        let of = |logits: &[f32], choice: &Choice| {
            let (ids, weights, _) = reference(logits, &[0.0, 0.0, 1.0, -0.5], choice);
            (ids, weights)
        };
        let close = |weights: &[f64], expected: &[f64]| {
            assert!(weights.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{weights:?}");
        };
        let (ids, weights) = of(&logits, &Choice::softmax(2, false));
        assert_eq!(ids, [1, 3]);
        close(&weights, &[0.4, 0.4]);
        let (_, weights) = of(&logits, &Choice { scale: 5.0, ..Choice::softmax(3, true) });
        close(&weights, &[2.0, 2.0, 1.0]);
        // A bias decides the choice, not the weight.
        let biased = Choice { gate: Gate::Sigmoid, is_biased: true, ..Choice::softmax(2, false) };
        let (ids, weights) = of(&logits, &biased);
        assert_eq!(ids, [2, 1]);
        close(&weights, &[0.0, 2.0 / 3.0]);
        // The second pair has the larger sum, the first one the larger score.
        let groups =
            |best| Choice { groups: Groups { count: 2, kept: 1, best }, ..Choice::softmax(1, false) };
        let logits = [4f32, 1.0, 3.0, 3.0].map(f32::ln);
        assert_eq!([1, 2].map(|best| of(&logits, &groups(best)).0), [[0], [2]]);
        for bad in [f32::NAN, f32::INFINITY] {
            let (ids, weights) = of(&[1.0, bad, 0.0], &Choice::softmax(2, true));
            assert_eq!(ids, [0, 1]);
            assert!(weights.iter().all(|weight| weight.is_nan()));
        }
    }

    #[test]
    fn impossible_choices_are_refused() {
        let route = |experts, choice: Choice| {
            let mut out = [0; 4];
            (ABI.extents)(&[&[3, 0, experts][..], &choice.constants()].concat(), &mut out);
            out[3]
        };
        let plain = |used| Choice::softmax(used, true);
        let grouped = |used, [count, kept, best]: [u32; 3]| Choice {
            groups: Groups { count, kept, best },
            ..plain(used)
        };
        assert_eq!(route(8, plain(2)), 48);
        assert_eq!(route(8, grouped(2, [4, 1, 2])), 48);
        for (experts, used) in [(8, 0), (8, 9), (70, 65), (0, 0), (MAX_EXPERTS + 1, 1)] {
            assert_eq!(route(experts, plain(used)), IMPOSSIBLE, "{used} of {experts}");
        }
        for groups in [[3, 1, 1], [4, 0, 1], [4, 5, 1], [8, 8, 2], [4, 1, 0], [0, 0, 1]] {
            assert_eq!(route(8, grouped(1, groups)), IMPOSSIBLE, "{groups:?}");
        }
        assert_eq!(route(8, grouped(3, [4, 1, 1])), IMPOSSIBLE);
    }
}
