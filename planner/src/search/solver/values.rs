//! The values that a largest term can have.
//!
//! Between two of them there is nothing: the limits of a box move to the values inside it, and a box without any is empty. Where
//! segments are alike there are few values, so that boxes soon hold one alone.
//!
//! This module must not know the searches.

use super::{Costs, Instance};

/// Values that differ by less, relatively, are kept as one interval.
const SAME: f64 = 1e-9;

/// Most values that are listed.
const MOST: usize = 1 << 16;

/// Intervals, in rising order, outside which a term has no value between the limits for which they were made.
pub(super) struct Values {
    /// `None`: it may have any.
    intervals: Option<Vec<(f64, f64)>>,
}

impl Values {
    /// A term of which nothing is known.
    pub const ANY: Self = Self { intervals: None };

    /// Of a part of costs that counts by the largest of all stages and crossings, and is between these limits.
    pub fn new(
        instance: &Instance,
        kinds: &[Vec<usize>],
        part: fn(&Costs) -> f64,
        limits: (f64, f64),
    ) -> Self {
        let (low, high) = limits;
        let crossings = instance.crossings.iter().flatten().map(|crossing| part(&crossing.costs));
        let mut all: Vec<f64> = crossings.filter(|value| (low..=high).contains(value)).collect();
        for device in kinds.iter().map(|kind| kind[0]) {
            let reach = &instance.devices[device].reach;
            let value = |first: usize, end: usize| part(&instance.stage(device, first..end));
            let mut begin = 0;
            for first in 0..instance.segments {
                let longest = reach.iter().map(|row| row[first]).max().unwrap_or(first);
                // The first segment of all may cost something more.
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

    /// The limits moved inwards as far as no value is lost; `None` if there is none between them.
    pub fn within(&self, low: f64, high: f64) -> Option<(f64, f64)> {
        let Some(intervals) = &self.intervals else { return (low <= high).then_some((low, high)) };
        let first = intervals.partition_point(|(_, last)| *last < low);
        let behind = intervals.partition_point(|(first, _)| *first <= high);
        let inside = intervals.get(first..behind).filter(|inside| !inside.is_empty())?;
        Some((low.max(inside[0].0), high.min(inside[inside.len() - 1].1)))
    }
}
