//! Trade-offs between the three terms of a score: computes limits on one term from the other terms. Knows
//! nothing about placements.

use super::{Costs, Score};

impl Score {
    /// Returns the score of a placement with the terms `total`.
    pub(crate) fn of(&self, total: &Costs) -> f64 {
        match *self {
            Self::Busy { sequences, chunk_weight } => {
                total.busy.max((total.time + weighted(chunk_weight, total.chunk)) / sequences)
            }
            Self::Sum { chunk_weight, busy_weight } => {
                total.time + weighted(chunk_weight, total.chunk) + weighted(busy_weight, total.busy)
            }
        }
    }

    /// Returns the weights of the maximum `busy` and the maximum `chunk` in the score. A weight is 0 if the
    /// term is not in the score.
    pub(crate) fn weights(&self) -> (f64, f64) {
        match *self {
            Self::Busy { sequences, chunk_weight } => (1.0, chunk_weight / sequences),
            Self::Sum { chunk_weight, busy_weight } => (busy_weight, chunk_weight),
        }
    }

    /// Returns the weights of the maximum `busy` and the maximum `chunk` in the sum that the score contains.
    /// For [`Score::Busy`], this is the sum of `time` and the weighted maximum `chunk`.
    pub(super) fn weights_in_sum(&self) -> Costs {
        match *self {
            Self::Busy { chunk_weight: chunk, .. } => Costs { busy: 0.0, time: 0.0, chunk },
            Self::Sum { chunk_weight: chunk, busy_weight: busy } => Costs { busy, time: 0.0, chunk },
        }
    }

    /// Returns the smallest possible score for this sum if the maximum `busy` is at least `busy`.
    pub(super) fn of_sum(&self, sum: f64, busy: f64) -> f64 {
        match *self {
            Self::Busy { sequences, .. } => busy.max(sum / sequences),
            Self::Sum { .. } => sum,
        }
    }

    /// Returns the largest sum that still lets a placement reach `score`.
    pub(super) fn most_sum(&self, score: f64) -> f64 {
        match *self {
            Self::Busy { sequences, .. } => score * sequences,
            Self::Sum { .. } => score,
        }
    }

    /// Returns, for each term, the largest value that still lets a placement reach `score`, if the other two
    /// terms are at least those of `least`. The value is infinite for a term that is not in the score.
    pub(super) fn largest_terms(&self, score: f64, least: &Costs) -> Costs {
        let per = |amount: f64, weight: f64| if weight == 0.0 { f64::INFINITY } else { amount / weight };
        let (rest, chunk_weight, busy) = match *self {
            Self::Busy { sequences, chunk_weight } => (score * sequences, chunk_weight, score),
            Self::Sum { chunk_weight, busy_weight } => {
                let sum = least.time + weighted(chunk_weight, least.chunk);
                (score - weighted(busy_weight, least.busy), chunk_weight, per(score - sum, busy_weight))
            }
        };
        let time = rest - weighted(chunk_weight, least.chunk);
        Costs { busy, time, chunk: per(rest - least.time, chunk_weight) }
    }
}

/// Multiplies `value` by `weight`. If the weight is 0, the result is 0 even for an infinite value.
fn weighted(weight: f64, value: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * value }
}
