//! Possible values of the maximum `busy` or the maximum `chunk`.
//!
//! The term has no value between two neighbouring listed values. So the limits of a box can move inwards to
//! listed values, and a box without a listed value is empty. If segments are equal, there are few values, and
//! boxes soon contain a single value.
//!
//! This module knows nothing about the searches.

use super::{Instance, Term};

/// Maximum relative difference between neighbouring values that are merged into one interval.
const SAME: f64 = 1e-9;

/// Maximum number of listed values.
const MOST: usize = 1 << 16;

/// Intervals in ascending order. They contain all possible values of a term between the limits that
/// [`Values::new`] received.
pub(super) struct Values {
    /// `None` if any value is possible.
    intervals: Option<Vec<(f64, f64)>>,
}

impl Values {
    /// Places no restriction on the values, for a term whose possible values are unknown.
    pub const ANY: Self = Self { intervals: None };

    /// Lists the values of a term, over all stages and transfers, that lie between the limits.
    pub fn new(instance: &Instance, kinds: &[Vec<usize>], term: Term, (low, high): (f64, f64)) -> Self {
        let transfers = instance.transfers.iter().flatten().map(|transfer| term.of(&transfer.costs));
        let mut all: Vec<f64> = transfers.filter(|value| (low..=high).contains(value)).collect();
        for device in kinds.iter().map(|kind| kind[0]) {
            let reach = &instance.devices[device].reach;
            let value = |first: usize, end: usize| term.of(&instance.stage(device, first..end));
            let mut begin = 0;
            for first in 0..instance.segments {
                let longest = reach.iter().map(|row| row[first]).fold(first, usize::max);
                // A run that starts at the first segment may have additional costs.
                begin = if first == 1 { first + 1 } else { begin.max(first + 1) };
                while begin <= longest && value(first, begin) < low {
                    begin += 1;
                }
                all.extend((begin..=longest).map(|end| value(first, end)).take_while(|value| *value <= high));
                if all.len() > MOST {
                    return Self::ANY;
                }
            }
        }
        all.sort_by(f64::total_cmp);
        let mut intervals: Vec<(f64, f64)> = Vec::new();
        for value in all {
            match intervals.last_mut() {
                Some((_, last)) if value <= *last * (1.0 + SAME) => *last = value,
                _ => intervals.push((value, value)),
            }
        }
        Self { intervals: Some(intervals) }
    }

    /// Moves `low` and `high` inwards to the nearest listed values. Returns `None` if no listed value lies
    /// between them.
    pub fn within(&self, low: f64, high: f64) -> Option<(f64, f64)> {
        let Some(intervals) = &self.intervals else { return (low <= high).then_some((low, high)) };
        let first = intervals.partition_point(|(_, last)| *last < low);
        let behind = intervals.partition_point(|(first, _)| *first <= high);
        let inside = intervals.get(first..behind).filter(|inside| !inside.is_empty())?;
        Some((low.max(inside[0].0), high.min(inside[inside.len() - 1].1)))
    }
}
