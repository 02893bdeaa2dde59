//! How a score trades its three parts: what is left for one of them when the others are known.
//!
//! This module must not know placements.

use super::{Costs, Score};

impl Score {
    /// The score of sums and largest terms.
    pub(crate) fn of(&self, total: &Costs) -> f64 {
        match *self {
            Self::Sum { chunk_weight } => total.time + weighted(chunk_weight, total.chunk),
            Self::Busy { sequences, chunk_weight } => {
                total.busy.max((total.time + weighted(chunk_weight, total.chunk)) / sequences)
            }
            Self::Mix { chunk_weight, busy_weight } => {
                total.time + weighted(chunk_weight, total.chunk) + weighted(busy_weight, total.busy)
            }
        }
    }

    /// Weights of the largest `busy` and the largest `chunk`; 0 where one does not count.
    pub(crate) fn weights(&self) -> (f64, f64) {
        match *self {
            Self::Sum { chunk_weight } => (0.0, chunk_weight),
            Self::Busy { sequences, chunk_weight } => (1.0, chunk_weight / sequences),
            Self::Mix { chunk_weight, busy_weight } => (busy_weight, chunk_weight),
        }
    }

    /// Weights of the largest `busy` and the largest `chunk` in the score's sum: all of a score but the busiest of
    /// [`Score::Busy`].
    pub(super) fn weights_in_sum(&self) -> Costs {
        match *self {
            Self::Sum { chunk_weight: chunk } | Self::Busy { chunk_weight: chunk, .. } => {
                Costs { busy: 0.0, time: 0.0, chunk }
            }
            Self::Mix { chunk_weight: chunk, busy_weight: busy } => Costs { busy, time: 0.0, chunk },
        }
    }

    /// The least score with this sum, if the largest `busy` is no less than `busy`.
    pub(super) fn of_sum(&self, sum: f64, busy: f64) -> f64 {
        match *self {
            Self::Busy { sequences, .. } => busy.max(sum / sequences),
            Self::Sum { .. } | Self::Mix { .. } => sum,
        }
    }

    /// The largest sum with which a score is kept.
    pub(super) fn most_sum(&self, score: f64) -> f64 {
        match *self {
            Self::Busy { sequences, .. } => score * sequences,
            Self::Sum { .. } | Self::Mix { .. } => score,
        }
    }

    /// The most of each part with which a score is kept if the other two are at least `least`. A part that does not count
    /// has no limit.
    pub(super) fn room(&self, score: f64, least: &Costs) -> Costs {
        let per = |room: f64, weight: f64| if weight == 0.0 { f64::INFINITY } else { room / weight };
        let (rest, chunk_weight, busy) = match *self {
            Self::Sum { chunk_weight } => (score, chunk_weight, f64::INFINITY),
            Self::Busy { sequences, chunk_weight } => (score * sequences, chunk_weight, score),
            Self::Mix { chunk_weight, busy_weight } => {
                let sum = least.time + weighted(chunk_weight, least.chunk);
                (score - weighted(busy_weight, least.busy), chunk_weight, per(score - sum, busy_weight))
            }
        };
        let time = rest - weighted(chunk_weight, least.chunk);
        Costs { busy, time, chunk: per(rest - least.time, chunk_weight) }
    }
}

/// A weight of 0 makes nothing of anything, of infinity too.
fn weighted(weight: f64, value: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * value }
}
