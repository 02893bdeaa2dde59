//! Reasons to doubt a measured profile. This module only judges figures.

use ragtag_planner::cost::{KindProfile, Profile, TimeSample};

/// Factor by which the rate of a chunk on a processor may exceed the rate of the shortest chunk. The shortest chunk
/// runs for a fraction of a millisecond. Other processes therefore disturb few of its repetitions, and its weights
/// come from the caches. Long chunks need fewer reads of weights for each row. They may also be much slower, because of attention.
const PEAK: f64 = 8.0;

/// Signs that a profile does not describe its device.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    /// Largest fraction of its time that a measurement has lost to other processes.
    lost: f64,
    /// Average number of CPUs that other processes used.
    others: f64,
    /// Description of the least plausible measurement.
    implausible: Option<String>,
}

impl Doubt {
    pub(super) fn new(lost: f64, others: f64, profile: &Profile, is_processor: bool) -> Self {
        let implausible =
            || profile.kinds.iter().filter_map(implausible).max_by(|(a, _), (b, _)| a.total_cmp(b));
        let implausible = is_processor.then(implausible).flatten().map(|(_, words)| words);
        Self { lost, others, implausible }
    }

    /// Returns why the profile is doubtful, or `None` if it is not. `max_load` is the largest acceptable loss. With 1
    /// or more, every profile is acceptable.
    pub(super) fn why(&self, max_load: f64, cpus: usize) -> Option<String> {
        if max_load >= 1.0 {
            return None;
        }
        if self.lost > max_load {
            let (percent, others) = (self.lost * 100.0, self.others);
            return Some(format!(
                "other processes took up to {percent:.0} % of the time from its measurements and used {others:.1} of \
                 {cpus} CPUs"
            ));
        }
        self.implausible.clone()
    }

    /// Returns whether this profile is more trustworthy than `other`.
    pub(super) fn is_less_than(&self, other: &Self) -> bool {
        (self.implausible.is_some(), self.lost) < (other.implausible.is_some(), other.lost)
    }
}

/// Returns the chunk with the highest rate, with its ratio to the rate of the shortest chunk. Returns `None` if no rate
/// is implausible.
fn implausible(kind: &KindProfile) -> Option<(f64, String)> {
    let rate = |sample: &TimeSample| kind.key.work(&sample.at).flops / sample.median_us.max(1e-3);
    let chunks = || kind.samples.iter().filter(|sample| sample.at.sequences < sample.at.rows);
    let shortest = chunks().next()?;
    let fastest = chunks().max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let (ratio, rows, short) = (rate(fastest) / rate(shortest), fastest.at.rows, shortest.at.rows);
    let words =
        || format!("a chunk of {rows} rows computed at {ratio:.1} times the rate of a chunk of {short} rows");
    (ratio > PEAK).then(|| (ratio, words()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_graph::SegmentKind;
    use ragtag_planner::cost::{SegmentKey, TimePoint};

    /// Returns a profile of chunks, given as pairs of rows and microseconds.
    fn profile(chunks: &[(u32, f64)]) -> Profile {
        let key = SegmentKey {
            kind: SegmentKind::Block,
            flops_per_row: 1 << 20,
            flops_per_row_position: 0,
            read_bytes: 1 << 20,
            experts: None,
            read_bytes_per_row: 0,
            kv_bytes_per_position: 64,
            window: None,
            state_bytes: 0,
        };
        let sample = |&(rows, median_us): &(u32, f64)| {
            let at = TimePoint { rows, sequences: 1, positions: f64::from(rows) / 2.0 };
            TimeSample { at, median_us, spread_us: 0.0, count: 9 }
        };
        let kinds = vec![KindProfile::new(key, chunks.iter().map(sample).collect())];
        Profile { kinds, ..super::super::kept::tests::profile(0) }
    }

    #[test]
    fn a_load_by_others_is_doubtful() {
        let why = |lost, max_load| {
            Doubt::new(lost, 1.34, &profile(&[(16, 100.0), (512, 2000.0)]), true).why(max_load, 2)
        };
        let load = "other processes took up to 62 % of the time from its measurements and used 1.3 of 2 CPUs";
        assert_eq!(why(0.62, 0.1).as_deref(), Some(load));
        assert_eq!(why(0.05, 0.1), None);
        assert_eq!(why(0.62, 1.0), None, "the user accepts any load");
    }

    #[test]
    fn a_rate_far_above_that_of_short_chunks_is_doubtful() {
        let why =
            |us| Doubt::new(0.0, 0.0, &profile(&[(16, 100.0), (128, 700.0), (512, us)]), true).why(0.1, 2);
        assert_eq!([why(3200.0), why(500.0), why(40e3)], [None, None, None]);
        let fast = "a chunk of 512 rows computed at 10.0 times the rate of a chunk of 16 rows";
        assert_eq!(why(320.0).as_deref(), Some(fast));
        // GPUs compute long chunks much faster than short ones.
        assert!(Doubt::new(0.0, 0.0, &profile(&[(16, 100.0), (512, 320.0)]), false).why(0.1, 2).is_none());
        assert!(Doubt::new(0.0, 0.0, &profile(&[]), true).why(0.1, 2).is_none());
    }

    #[test]
    fn the_less_disturbed_of_two_profiles_counts() {
        let doubt = |lost, us| Doubt::new(lost, 1.0, &profile(&[(16, 100.0), (512, us)]), true);
        assert!(doubt(0.2, 3000.0).is_less_than(&doubt(0.3, 3000.0)));
        assert!(!doubt(0.3, 3000.0).is_less_than(&doubt(0.3, 3000.0)));
        assert!(doubt(0.9, 3000.0).is_less_than(&doubt(0.1, 10.0)));
    }
}
